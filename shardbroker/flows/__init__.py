"""The process flows: rules over the records that workers write into their journals, and the actions of rules."""

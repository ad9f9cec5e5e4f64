"""Rules: EMQX's SQL over messages and events.

Pure: no I/O, no clock other than that of a function of SQL, no process. Text becomes tokens (`lexer`), a tree (`parser`) and one Python
function (`compiler`), whose operators are in `values` and whose functions are in `functions`.
"""

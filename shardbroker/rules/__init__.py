"""Rules: EMQX's SQL over messages and events.

Pure: no I/O, no clock other than that of a function of SQL, no process other than that of the function `jq`. Text becomes tokens
(`lexer`), a tree (`parser`, `syntax`) and one Python function (`compiler`, `expressions`), whose operators are in `operators`,
`paths` and `payload` and whose functions are in `functions`. `tester` evaluates a rule over example values of the columns in
`events`.

Decisions and figures: docs/design/0012-rules.md.
"""

from shardbroker.rules.compiler import CompiledRule, compile_rule
from shardbroker.rules.errors import SqlError
from shardbroker.rules.payload import Payload
from shardbroker.rules.templates import Template, template
from shardbroker.rules.values import UNDEFINED, EvaluationError

__all__ = ["UNDEFINED", "CompiledRule", "EvaluationError", "Payload", "SqlError", "Template", "compile_rule", "template"]

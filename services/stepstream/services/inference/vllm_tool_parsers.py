"""Register Stepstream's own tool parsers in vLLM (`--tool-parser-plugin`), so that both engines know the same names."""

from collections.abc import Sequence
from typing import Any

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.renderers.chat_utils import make_tool_call_id
from vllm.tool_parsers import ToolParserManager
from vllm.tool_parsers.abstract_tool_parser import ToolParser

from stepstream.services.inference.tool_parsers import TOOL_PARSERS, ParsedCall


class WholeCallParser(ToolParser):  # type: ignore[misc]
    """Holds text back while it can become a call, which is complete at the end of the response only."""

    parser_name = "none"
    engine_based_streaming = True  # vLLM then calls `finish_streaming`

    def __init__(self, tokenizer: Any, tools: Any = None) -> None:
        super().__init__(tokenizer, tools)
        self._parser = TOOL_PARSERS[self.parser_name]()
        self._names: frozenset[str] = frozenset()
        self._held_back = ""
        self._holding = True

    def extract_tool_calls(self, model_output: str, request: Any) -> Any:
        """Parse a complete response."""
        call = self._parser.parse(model_output, _names(request))
        if call is None:
            return ExtractedToolCallInformation(tools_called=False, tool_calls=[], content=model_output)
        function = FunctionCall(name=call.name, arguments=call.arguments)
        return ExtractedToolCallInformation(tools_called=True, tool_calls=[ToolCall(function=function)], content=None)

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> Any:
        """Return the text that is certainly no call; None while nothing is certain."""
        self._names = _names(request)
        self._held_back += delta_text
        self._holding = self._holding and self._parser.may_become_call(self._held_back, self._names)
        if self._holding or not self._held_back:
            return None
        content, self._held_back = self._held_back, ""
        return DeltaMessage(content=content)

    def finish_streaming(self) -> Any:
        """Return the call or the rest of the text; None: nothing was held back."""
        text, self._held_back = self._held_back, ""
        call = self._parser.parse(text, self._names)
        if call is not None:
            return DeltaMessage(tool_calls=[_delta(call)])
        return DeltaMessage(content=text) if text else None


def _names(request: Any) -> frozenset[str]:
    """Return the tools that a response may call."""
    if request.tool_choice == "none":
        return frozenset()
    return frozenset(tool.function.name for tool in request.tools or ())


def _delta(call: ParsedCall) -> Any:
    function = DeltaFunctionCall(name=call.name, arguments=call.arguments)
    return DeltaToolCall(index=0, id=make_tool_call_id(), type="function", function=function)


for _name in TOOL_PARSERS:
    ToolParserManager.register_module(
        _name, module=type(f"WholeCall_{_name}", (WholeCallParser,), {"parser_name": _name})
    )

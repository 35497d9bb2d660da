"""Run LangGraph's prebuilt agent: `langgraph_agent.py whole|streamed`; reads GATEWAY_… and QUESTION."""

import json
import os
import sys

from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from tools import lookup, refund


def main(streaming: bool) -> None:
    model = ChatOpenAI(
        model="demo",
        base_url=os.environ["GATEWAY_URL"],
        api_key=os.environ["GATEWAY_KEY"],
        default_headers=json.loads(os.environ["GATEWAY_HEADERS"]),
        streaming=streaming,
    )
    agent = create_react_agent(model, [lookup, refund], prompt="Help with orders.")
    end = agent.invoke({"messages": [("user", os.environ["QUESTION"])]})
    print(end["messages"][-1].content)


if __name__ == "__main__":
    main(sys.argv[1] == "streamed")

"""Run a CrewAI crew with one agent; reads GATEWAY_URL, GATEWAY_KEY and QUESTION, since it takes no headers."""

import os

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from tools import lookup, refund


def main() -> None:
    llm = LLM(model="openai/demo", base_url=os.environ["GATEWAY_URL"], api_key=os.environ["GATEWAY_KEY"])
    agent = Agent(
        role="Order desk",
        goal="Settle tickets",
        backstory="You help with orders.",
        tools=[tool("lookup")(lookup), tool("refund")(refund)],
        llm=llm,
    )
    task = Task(description=os.environ["QUESTION"], expected_output="One sentence.", agent=agent)
    print(Crew(agents=[agent], tasks=[task]).kickoff().raw)


if __name__ == "__main__":
    main()

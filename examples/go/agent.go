package main

import (
	"encoding/json"
	"fmt"
	"time"
)

// The answers are scripted, so that the example runs without a model; replace callModel with a call to yours.

type message struct {
	Role       string     `avro:"role"`
	Content    string     `avro:"content"`
	ToolCalls  []toolCall `avro:"tool_calls"`
	ToolCallID *string    `avro:"tool_call_id"`
}

type toolCall struct {
	CallID     string   `avro:"call_id"`
	Name       string   `avro:"name"`
	Arguments  string   `avro:"arguments"`
	Result     *string  `avro:"result"`
	DurationMs *float32 `avro:"duration_ms"`
}

// round is one step of the agent: the new messages of its prompt, and its response.
type round struct {
	Index          int
	SharedMessages int
	Messages       []message
	Response       message
	FinishReason   string
	Duration       time.Duration
}

var tools = map[string]func(arguments map[string]any) map[string]any{
	"get_order": func(arguments map[string]any) map[string]any {
		return map[string]any{"order": arguments["order"], "item": "kettle", "paid": 49.9, "state": "arrived broken"}
	},
	"refund": func(arguments map[string]any) map[string]any {
		return map[string]any{"order": arguments["order"], "refunded": arguments["amount"]}
	},
}

var answers = []message{
	{ToolCalls: []toolCall{{Name: "get_order", Arguments: `{"order": "A17"}`}}},
	{ToolCalls: []toolCall{{Name: "refund", Arguments: `{"order": "A17", "amount": 49.9}`}}},
	{Content: "I am sorry about the kettle. Your 49.90 are on their way back to you."},
}

func callModel(turn int) message {
	answer := answers[turn]
	answer.Role = "assistant"
	for i := range answer.ToolCalls {
		answer.ToolCalls[i].CallID = fmt.Sprintf("call_%d_%d", turn, i)
	}
	return answer
}

func callTool(call toolCall) (toolCall, error) {
	var arguments map[string]any
	if err := json.Unmarshal([]byte(call.Arguments), &arguments); err != nil {
		return call, fmt.Errorf("arguments of %s: %w", call.Name, err)
	}
	started := time.Now()
	result, err := json.Marshal(tools[call.Name](arguments))
	if err != nil {
		return call, err
	}
	text, took := string(result), float32(time.Since(started).Seconds()*1000)
	call.Result, call.DurationMs = &text, &took
	return call, nil
}

// solve handles one request and calls onStep after each round. It returns the index of the last step.
func solve(request string, onStep func(round) error) (int, error) {
	conversation := []message{
		{Role: "system", Content: "You help customers with their orders."},
		{Role: "user", Content: request},
	}
	shared := 0 // messages that previous steps already carry; a step carries only new ones
	for index := 0; ; index++ {
		started := time.Now()
		answer := callModel(index)
		step := round{
			Index: index, SharedMessages: shared, Messages: conversation[shared:], FinishReason: "stop",
			Duration: time.Since(started),
		}
		for i, call := range answer.ToolCalls {
			done, err := callTool(call)
			if err != nil {
				return index, err
			}
			answer.ToolCalls[i], step.FinishReason = done, "tool_calls"
		}
		step.Response = answer
		conversation = append(conversation, answer)
		shared = len(conversation)
		for _, call := range answer.ToolCalls {
			id := call.CallID
			conversation = append(conversation, message{Role: "tool", Content: *call.Result, ToolCallID: &id})
		}
		if err := onStep(step); err != nil {
			return index, err
		}
		if len(answer.ToolCalls) == 0 {
			return index, nil
		}
	}
}

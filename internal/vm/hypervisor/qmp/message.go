package qmp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// errMalformed is wrapped by every complaint about what QEMU sent.
var errMalformed = errors.New("malformed QMP message")

// Error is QEMU's refusal of a command. The connection works on.
type Error struct {
	// Command is the command that was refused.
	Command string
	// Class is QEMU's error class. It is "GenericError" but for a few cases, such
	// as "CommandNotFound" and "DeviceNotFound".
	Class string
	// Description is for people. Where QEMU offers nothing else to tell two errors
	// apart, there is no other way than to look into it.
	Description string
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("QEMU refuses %s: %s (%s)", e.Command, e.Description, e.Class)
}

// Event is something that happened in QEMU.
type Event struct {
	// Name is the event's name, such as "SHUTDOWN".
	Name string
	// Data is the event's JSON object; nil if it has none.
	Data json.RawMessage
	// Time is when it happened by QEMU's clock; zero if QEMU could not tell.
	Time time.Time
}

// request is a command on the wire.
type request struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
	ID        string `json:"id"`
}

// encode returns the bytes of a command, with the line end that QEMU waits for.
func (r request) encode() ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encoding the arguments of %s: %w", r.Execute, err)
	}
	return append(text, '\n'), nil
}

// message is one line from QEMU. Exactly one of greeting, event and response is
// set. Members that are not listed in wireMessage are ignored, as the protocol's
// specification asks of clients.
type message struct {
	greeting bool
	event    *Event
	response *response
}

// response answers the command with the same id.
type response struct {
	id     uint64
	result json.RawMessage
	// failure has no Command: the waiter knows that.
	failure *Error
}

type wireMessage struct {
	Greeting  json.RawMessage `json:"QMP"`
	Return    json.RawMessage `json:"return"`
	Error     *wireError      `json:"error"`
	ID        *string         `json:"id"`
	Event     *string         `json:"event"`
	Data      json.RawMessage `json:"data"`
	Timestamp struct {
		Seconds      int64 `json:"seconds"`
		Microseconds int64 `json:"microseconds"`
	} `json:"timestamp"`
}

type wireError struct {
	Class       string `json:"class"`
	Description string `json:"desc"`
}

// decode reads one line from QEMU. The result does not refer to the line.
func decode(line []byte) (message, error) {
	var wire wireMessage
	if err := json.Unmarshal(line, &wire); err != nil {
		return message{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	switch {
	case wire.Greeting != nil:
		return message{greeting: true}, nil
	case wire.Event != nil:
		return message{event: wire.asEvent()}, nil
	case wire.Return != nil || wire.Error != nil:
		answer, err := wire.asResponse()
		return message{response: answer}, err
	default:
		return message{}, fmt.Errorf("%w: neither greeting, event nor response", errMalformed)
	}
}

func (w wireMessage) asEvent() *Event {
	event := &Event{Name: *w.Event, Data: w.Data}
	// QEMU sends -1 for both when its clock fails.
	if w.Timestamp.Seconds > 0 {
		event.Time = time.Unix(w.Timestamp.Seconds, w.Timestamp.Microseconds*1000)
	}
	return event
}

// asResponse refuses a response without one of our ids. QEMU sends such a thing
// only when it could not parse a command; then nobody knows whose it was, and a
// waiter would wait for ever.
func (w wireMessage) asResponse() (*response, error) {
	if w.ID == nil {
		return nil, fmt.Errorf("%w: response without id: %s", errMalformed, w.describe())
	}
	id, err := strconv.ParseUint(*w.ID, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: response with the foreign id %q", errMalformed, *w.ID)
	}
	answer := &response{id: id, result: w.Return}
	if w.Error != nil {
		answer.failure = &Error{Class: w.Error.Class, Description: w.Error.Description}
	}
	return answer, nil
}

func (w wireMessage) describe() string {
	if w.Error != nil {
		return w.Error.Description
	}
	return "return"
}

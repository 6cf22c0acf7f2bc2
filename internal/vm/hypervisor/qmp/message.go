package qmp

import (
	"encoding/json"
	"errors"
	"fmt"
)

// errMalformed is wrapped by errors about messages from QEMU.
var errMalformed = errors.New("malformed QMP message")

// Error is QEMU's refusal of a command. The connection goes on.
type Error struct {
	// Command that was refused.
	Command string
	// Class is QEMU's error class. Nearly always "GenericError"; others are
	// "CommandNotFound" and "DeviceNotFound".
	Class string
	// Description is a message for users. It is often the only way to distinguish errors.
	Description string
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("QEMU refuses %s: %s (%s)", e.Command, e.Description, e.Class)
}

// Event is an asynchronous message from QEMU.
type Event struct {
	// Name of the event, such as "SHUTDOWN".
	Name string
	// Data is the event's JSON object. Nil if it has none.
	Data json.RawMessage
}

type request struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
	ID        string `json:"id"`
}

// message is one line from QEMU: a greeting, an event, or the response with an ID. Unknown
// members are ignored, as the protocol's specification demands of clients.
type message struct {
	Greeting json.RawMessage `json:"QMP"`
	Event    string          `json:"event"`
	Data     json.RawMessage `json:"data"`
	ID       string          `json:"id"`
	Return   json.RawMessage `json:"return"`
	Error    *struct {
		Class       string `json:"class"`
		Description string `json:"desc"`
	} `json:"error"`
}

// decode reads one line from QEMU. A response without an ID is an error: QEMU sends one
// when it could not parse a command, so the caller of some command would wait for ever.
func decode(line []byte) (message, error) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return message{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	switch {
	case m.Greeting != nil || m.Event != "":
		return m, nil
	case m.Return == nil && m.Error == nil:
		return message{}, fmt.Errorf("%w: neither greeting, event nor response", errMalformed)
	case m.ID == "":
		return message{}, fmt.Errorf("%w: response without ID: %.300s", errMalformed, line)
	}
	return m, nil
}

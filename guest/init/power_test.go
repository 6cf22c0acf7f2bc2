package main

import (
	"encoding/binary"
	"testing"
)

func event(kind, code uint16, value uint32) []byte {
	e := make([]byte, eventSize)
	binary.NativeEndian.PutUint16(e[typeAt:], kind)
	binary.NativeEndian.PutUint16(e[codeAt:], code)
	binary.NativeEndian.PutUint32(e[valueAt:], value)
	return e
}

func TestPowerButton_IsPressed(t *testing.T) {
	synchronization := event(0, 0, 0)
	for name, test := range map[string]struct {
		events []byte
		want   bool
	}{
		"Nothing":  {nil, false},
		"Down":     {event(typeKey, codePower, 1), true},
		"Up":       {event(typeKey, codePower, 0), false},
		"OtherKey": {event(typeKey, 30, 1), false},
		"NoKey":    {event(2, codePower, 1), false},
		"Later":    {append(synchronization, event(typeKey, codePower, 1)...), true},
		"Half":     {event(typeKey, codePower, 1)[:eventSize-1], false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := pressed(test.events); got != test.want {
				t.Errorf("pressed = %t, want %t", got, test.want)
			}
		})
	}
}

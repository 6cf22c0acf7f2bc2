package qmp

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMessage_Decode(t *testing.T) {
	for name, test := range map[string]struct {
		line string
		want message
	}{
		"greeting": {`{"QMP": {}}`, message{Greeting: []byte("{}")}},
		"result":   {`{"return": {"a": 1}, "id": "7"}`, message{ID: "7", Return: []byte(`{"a": 1}`)}},
		"event": {
			`{"timestamp": {"seconds": 1600000000, "microseconds": 250}, "event": "RESET", "data": {"guest": false}}`,
			message{Event: "RESET", Data: []byte(`{"guest": false}`)},
		},
		"event without data": {`{"timestamp": {"seconds": -1, "microseconds": -1}, "event": "STOP"}`, message{Event: "STOP"}},
		"unknown members":    {`{"return": null, "id": "9", "x-new": [1]}`, message{ID: "9", Return: []byte("null")}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decode([]byte(test.line))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMessage_DecodeRejects(t *testing.T) {
	for name, line := range map[string]string{
		"no JSON":     `hello`,
		"two objects": `{"return": {}, "id": "1"} {"return": {}, "id": "2"}`,
		"no object":   `[]`,
		"nothing":     `{}`,
		"no id":       `{"return": {}}`,
		"number id":   `{"return": {}, "id": 5}`,
		"wrong types": `{"event": 5}`,
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := decode([]byte(line)); !errors.Is(err, errMalformed) {
				t.Errorf("decode = %+v, %v; want errMalformed", got, err)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		greeting, `{"return": {}, "id": "1"}`, `{"error": {"class": "G", "desc": "d"}, "id": "2"}`,
		`{"event": "SHUTDOWN", "data": {"guest": true}, "timestamp": {"seconds": 1, "microseconds": 2}}`,
		`{"return":`, `{"QMP": null, "event": null}`, "\x00", `{"timestamp": {"seconds": 9223372036854775807}, "event": ""}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		got, err := decode(line)
		if err != nil {
			if !errors.Is(err, errMalformed) {
				t.Errorf("%q: error = %v, want errMalformed", line, err)
			}
			return
		}
		kinds := 0
		for _, set := range []bool{got.Greeting != nil, got.Event != "", got.ID != "" && (got.Return != nil || got.Error != nil)} {
			if set {
				kinds++
			}
		}
		if kinds == 0 {
			t.Errorf("%q: message without content: %+v", line, got)
		}
	})
}

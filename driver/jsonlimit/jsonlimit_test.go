package jsonlimit

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

var small = Limits{Bytes: 100, Values: 10, Depth: 4, Items: 3}

func TestReader_LimitsDocuments(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		ok   bool
	}{
		"an object":                            {` {"a": 1, "b": [1, 2], "c": {"d": "[{,"}} ` + "\n", true},
		"quotes and backslashes in a string":   {`{"a": "\"[[[[[[[[[[[\\"}`, true},
		"as long as possible":                  {`{"a": "` + strings.Repeat("x", 91) + `"}`, true},
		"too long":                             {`{"a": "` + strings.Repeat("x", 92) + `"}`, false},
		"too long because of white space":      {strings.Repeat(" ", 100) + `{}`, false},
		"as many values as possible":           {`{"a":{` + strings.Repeat(`"":1,`, 8) + `"":1}}`, true},
		"too many values":                      {`{"a":{` + strings.Repeat(`"":1,`, 9) + `"":1}}`, false},
		"too many values, after a backslash":   {`{"\\":{` + strings.Repeat(`"":1,`, 9) + `"":1}}`, false},
		"as many items as possible":            {`{"a":[{},{},{}]}`, true},
		"too many items":                       {`{"a":[{},{},{},{}]}`, false},
		"too many items in two arrays":         {`{"a":[{},{}],"a":[{},{}]}`, false},
		"many elements below an item":          {`{"a":[{"b":[1,2,3,4,5]}]}`, true},
		"many values in an object":             {`{"a":{"b":1,"c":1,"d":1,"e":1}}`, true},
		"as deep as possible":                  {`{"a":[[[]]]}`, true},
		"too deep":                             {`{"a":[[[[]]]]}`, false},
		"an array":                             {`[1]`, false},
		"a string":                             {`"a"`, false},
		"YAML":                                 {"- {}\n- {}", false},
		"protobuf":                             {"k8s\x00", false},
		"brackets that were not opened":        {`{}}}`, false},
		"white space that JSON does not allow": {"\u00a0{}", false},
	} {
		for reading, from := range map[string]io.Reader{
			"all together": strings.NewReader(tc.text), "one byte each": iotest.OneByteReader(strings.NewReader(tc.text)),
		} {
			content, err := io.ReadAll(small.Document(from))
			limit, limited := errors.AsType[*Error](err)
			if (err == nil) != tc.ok || err != nil && (!limited || limit.Error() == "") {
				t.Errorf("%s, %s: got error %v, want error: %t", name, reading, err, !tc.ok)
			}
			if tc.ok && string(content) != tc.text || len(content) > small.Bytes {
				t.Errorf("%s, %s: read %q", name, reading, content)
			}
		}
	}
}

// TestReader_LimitsEachDocumentOfAStream: a stream has no length, but each of its documents has the limits.
func TestReader_LimitsEachDocumentOfAStream(t *testing.T) {
	event := `{"a":[{},{},{}],"b":"` + strings.Repeat("x", 50) + `"}` + "\n"
	decoder := json.NewDecoder(small.Stream(strings.NewReader(strings.Repeat(event, 100) + `{"a":[{},{},{},{}]}`)))
	for i := range 101 {
		var value any
		err := decoder.Decode(&value)
		if _, limited := errors.AsType[*Error](err); limited != (i == 100) || err != nil && !limited {
			t.Fatalf("document %d: got error %v", i, err)
		}
	}
	for _, endless := range []string{" ", "a", `{"`, `{"":`, `{}{"":[`} {
		piece := endless + strings.Repeat(string(endless[len(endless)-1]), 1000)
		if _, err := io.ReadAll(small.Stream(strings.NewReader(piece))); err == nil {
			t.Errorf("%.20q...: all of it was read", piece)
		}
	}
}

// TestReader_Largest: the largest document of a stream is remembered, also if all are read together.
func TestReader_Largest(t *testing.T) {
	for name, from := range map[string]io.Reader{
		"all together":  strings.NewReader(`{"a":[1,2,3]}{"b":"xxxxxxxxxxxx"}{"c"`),
		"one byte each": iotest.OneByteReader(strings.NewReader(`{"a":[1,2,3]}{"b":"xxxxxxxxxxxx"}{"c"`)),
	} {
		reader := small.Stream(from)
		if _, err := io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
		if bytes, values := reader.Largest(); bytes != len(`{"b":"xxxxxxxxxxxx"}`) || values != 4 {
			t.Errorf("%s: %d bytes, %d values", name, bytes, values)
		}
	}
}

// TestReader_CountsValues: the count is at least the number of values in the document.
func TestReader_CountsValues(t *testing.T) {
	for text, want := range map[string]int{`{}`: 1, `{"a":1}`: 1, `{"a":1,"b":[1,2]}`: 4, `{"a":{"b":{}}}`: 3} {
		reader := Limits{Bytes: 100, Values: 100, Depth: 100}.Document(strings.NewReader(text))
		if _, err := io.ReadAll(reader); err != nil || reader.Values() != want {
			t.Errorf("%s: %d values, %v; want %d", text, reader.Values(), err, want)
		}
	}
}

// FuzzReader_Bounds: whatever encoding/json accepts within the limits is read in full, and never has more values or levels.
func FuzzReader_Bounds(f *testing.F) {
	f.Add(`{"a":[{},{}],"b":"\\\"","c":{"d":null}}`)
	f.Add(`{"a":[[[[[[]]]]]]}`)
	f.Fuzz(func(t *testing.T, text string) {
		reader := small.Document(strings.NewReader(text))
		content, err := io.ReadAll(reader)
		if err != nil {
			return
		}
		var value map[string]any
		if string(content) != text {
			t.Fatalf("read %q of %q", content, text)
		}
		if json.Unmarshal(content, &value) != nil {
			return
		}
		if values, depth := size(value); values > small.Values+1 || depth > small.Depth {
			t.Errorf("%q: %d values, %d levels", text, values, depth)
		}
	})
}

// size returns the number of values in a value, including itself, and the number of levels.
func size(value any) (values, depth int) {
	var below []any
	switch value := value.(type) {
	case map[string]any:
		depth = 1
		for _, v := range value {
			below = append(below, v)
		}
	case []any:
		depth, below = 1, value
	}
	for _, v := range below {
		n, levels := size(v)
		values, depth = values+n, max(depth, levels+1)
	}
	return values + 1, depth
}

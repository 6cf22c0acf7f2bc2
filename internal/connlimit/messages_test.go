package connlimit

import (
	"bytes"
	"cmp"
	"runtime"
	"testing"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	goproto "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// TestMessages_LimitFields: the number of fields is limited at each level, in lists, in maps and in lists of numbers.
func TestMessages_LimitFields(t *testing.T) {
	encode := func(message goproto.Message) []byte {
		data, err := goproto.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	list := func(n int) *structpb.ListValue { return &structpb.ListValue{Values: make([]*structpb.Value, n)} }
	full := func(n int) *structpb.ListValue {
		l := list(n)
		for i := range l.Values {
			l.Values[i] = structpb.NewNullValue()
		}
		return l
	}
	deep := structpb.NewNullValue()
	for range maxDepth {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	for name, tc := range map[string]struct {
		data []byte
		into goproto.Message
		ok   bool
		// limit is the number of fields; 10 if it is zero.
		limit int
	}{
		"nothing":          {nil, list(0), true, 0},
		"the limit":        {encode(full(5)), list(0), true, 0},
		"more":             {encode(full(6)), list(0), false, 0},
		"more, below":      {encode(structpb.NewListValue(full(6))), &structpb.Value{}, false, 0},
		"empty elements":   {bytes.Repeat([]byte{0x0a, 0}, 11), list(0), false, 0},
		"a map":            {encode(&structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewNullValue()}}), &structpb.Struct{}, true, 0},
		"a larger map":     {bytes.Repeat(encode(&structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewNullValue()}}), 3), &structpb.Struct{}, false, 0},
		"unknown fields":   {bytes.Repeat([]byte{0x7a, 0}, 11), list(0), false, 0},
		"numbers":          {encode(&descriptorpb.SourceCodeInfo_Location{Path: make([]int32, 9)}), &descriptorpb.SourceCodeInfo_Location{}, true, 0},
		"more numbers":     {encode(&descriptorpb.SourceCodeInfo_Location{Path: make([]int32, 9), Span: []int32{1}}), &descriptorpb.SourceCodeInfo_Location{}, false, 0},
		"too many numbers": {encode(&descriptorpb.SourceCodeInfo_Location{Path: make([]int32, 10)}), &descriptorpb.SourceCodeInfo_Location{}, false, 0},
		"a string":         {encode(structpb.NewStringValue("\x0a\x00\x0a\x00\x0a\x00\x0a\x00\x0a\x00\x0a\x00\x0a\x00\x0a\x00\x0a\x00\x0a\x00\x0a\x00")), &structpb.Value{}, true, 0},
		"cut off":          {[]byte{0x0a, 5, 1}, list(0), false, 0},
		"a tag only":       {[]byte{0x0a}, list(0), false, 0},
		"many levels":      {encode(deep), &structpb.Value{}, false, 1000},
	} {
		codec := messages{encoding.GetCodecV2(proto.Name), cmp.Or(tc.limit, 10)}
		for buffers, data := range map[string]mem.BufferSlice{
			"one buffer": {mem.SliceBuffer(tc.data)}, "two": {mem.SliceBuffer(tc.data[:len(tc.data)/2]), mem.SliceBuffer(tc.data[len(tc.data)/2:])},
		} {
			err := codec.Unmarshal(data, tc.into)
			if (err == nil) != tc.ok {
				t.Errorf("%s, %s: error %v, want one: %t", name, buffers, err, !tc.ok)
			}
			var want goproto.Message = tc.into.ProtoReflect().New().Interface()
			if tc.ok && (goproto.Unmarshal(tc.data, want) != nil || !goproto.Equal(tc.into, want)) {
				t.Errorf("%s, %s: decoded %v, want %v", name, buffers, tc.into, want)
			}
		}
	}
	if err := (messages{}).Unmarshal(nil, "text"); err == nil {
		t.Error("no error for something that is not a message")
	}
}

// TestMessages_RejectBeforeDecoding: a long message with too many fields takes no memory.
func TestMessages_RejectBeforeDecoding(t *testing.T) {
	data := mem.BufferSlice{mem.SliceBuffer(bytes.Repeat([]byte{0x0a, 0}, 8<<20))}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := messages{encoding.GetCodecV2(proto.Name), 1 << 18}.Unmarshal(data, &structpb.ListValue{})
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; err == nil || got > 1<<20 {
		t.Errorf("error %v, %d bytes are allocated", err, got)
	}
}

package connlimit

import (
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	goproto "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Messages is an option for a server that rejects messages with more than maxFields fields, including those of the
// messages in them, before they are decoded. Two bytes can otherwise become a message that takes a hundred. Entries of
// lists and maps count as fields.
func Messages(maxFields int) grpc.ServerOption {
	return grpc.ForceServerCodecV2(messages{encoding.GetCodecV2(proto.Name), maxFields})
}

// Responses is an option for a client that rejects responses as Messages rejects requests.
func Responses(maxFields int) grpc.DialOption {
	return grpc.WithDefaultCallOptions(grpc.ForceCodecV2(messages{encoding.GetCodecV2(proto.Name), maxFields}))
}

type messages struct {
	encoding.CodecV2
	maxFields int
}

// Unmarshal implements encoding.CodecV2.
func (m messages) Unmarshal(data mem.BufferSlice, into any) error {
	message, ok := into.(goproto.Message)
	if !ok {
		return fmt.Errorf("cannot decode a message into %T", into)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	left := m.maxFields
	if err := count(buffer.ReadOnlyData(), message.ProtoReflect().Descriptor(), &left, maxDepth); err != nil {
		return err
	}
	return m.CodecV2.Unmarshal(mem.BufferSlice{buffer}, into)
}

var errFields = errors.New("the message has too many fields")

// maxDepth is the maximum depth of messages in messages.
const maxDepth = 16

// count subtracts the fields of a message from left. It returns an error if there are more, or if the message is
// invalid.
func count(data []byte, of protoreflect.MessageDescriptor, left *int, depth int) error {
	if depth == 0 {
		return fmt.Errorf("the message has messages in more than %d levels", maxDepth)
	}
	for len(data) > 0 {
		if *left--; *left < 0 {
			return errFields
		}
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, wire, data); n < 0 {
			return protowire.ParseError(n)
		}
		value := data[:n]
		data = data[n:]
		if wire != protowire.BytesType {
			continue
		}
		content, _ := protowire.ConsumeBytes(value)
		if err := countContent(content, of.Fields().ByNumber(number), left, depth); err != nil {
			return err
		}
	}
	if *left < 0 {
		return errFields
	}
	return nil
}

// countContent subtracts the fields or numbers in a field with a length.
func countContent(content []byte, field protoreflect.FieldDescriptor, left *int, depth int) error {
	switch {
	case field == nil: // unknown fields are kept as bytes
		return nil
	case field.Message() != nil:
		return count(content, field.Message(), left, depth-1)
	case field.IsList() && field.Kind() != protoreflect.StringKind && field.Kind() != protoreflect.BytesKind:
		*left -= len(content) // packed numbers, each of which has at least one byte
	}
	return nil
}

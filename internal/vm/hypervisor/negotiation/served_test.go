package negotiation

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// served returns a side that attaches the disks of a disk server.
func served(names ...string) Machine {
	machine := sharing(names...)
	machine.Served = true
	return machine
}

// Served disks are not copied, and both sides must use them.
func TestServedDisks_RequireBothSides(t *testing.T) {
	for name, test := range map[string]struct {
		source, target Machine
		agree          bool
	}{
		"served":                 {served(), served(), true},
		"with data disks":        {served("logs", "db"), served("logs", "db"), true},
		"a missing disk":         {served("logs", "db"), served("logs"), false},
		"shared on the target":   {served(), sharing(), false},
		"shared on the source":   {sharing(), served(), false},
		"own disk on the target": {served(), with(), false},
		"own disk on the source": {own, served(), false},
	} {
		t.Run(name, func(t *testing.T) {
			offered := Offer(test.source)
			response, err := Choose(offered, test.target)
			if !test.agree {
				if status.Code(err) != codes.InvalidArgument {
					t.Errorf("%v, %v; want INVALID_ARGUMENT", response, err)
				}
				return
			}
			if err != nil || !proto.Equal(response, offered[0]) {
				t.Fatalf("%v, %v; want %v", response, err, offered[0])
			}
			response.GetQemuNbd().NegotiatedEndpoint = "tcp:10.0.0.1:1"
			if _, err := Verify(offered, response); err != nil {
				t.Error(err)
			}
			response.GetQemuNbd().ConstraintDisksServed = false // as an earlier version does, which drops the field
			if _, err := Verify(offered, response); err == nil {
				t.Error("the source accepted a target that does not know the field")
			}
		})
	}
}

package negotiation

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// served is for two sides that attach the disks of a disk server.
func served(names ...string) Machine {
	machine := sharing(names...)
	machine.Served = true
	return machine
}

// Served disks are not copied, and both sides must have them.
func TestServedDisks(t *testing.T) {
	for name, test := range map[string]struct {
		source, target Machine
		agree          bool
	}{
		"served":                   {served(), served(), true},
		"with data disks":          {served("logs", "db"), served("logs", "db"), true},
		"one is missing":           {served("logs", "db"), served("logs"), false},
		"shared at the target":     {served(), sharing(), false},
		"shared at the source":     {sharing(), served(), false},
		"the target's own":         {served(), with(), false},
		"copied from the source's": {own, served(), false},
	} {
		t.Run(name, func(t *testing.T) {
			offered := Offer(test.source)
			answer, err := Choose(offered, test.target)
			if !test.agree {
				if status.Code(err) != codes.InvalidArgument {
					t.Errorf("%v, %v; want INVALID_ARGUMENT", answer, err)
				}
				return
			}
			if err != nil || !proto.Equal(answer, offered[0]) {
				t.Fatalf("%v, %v; want %v", answer, err, offered[0])
			}
			answer.GetQemuNbd().NegotiatedEndpoint = "tcp:10.0.0.1:1"
			if _, err := Verify(offered, answer); err != nil {
				t.Error(err)
			}
			answer.GetQemuNbd().ConstraintDisksServed = false // as an earlier version, which drops it
			if _, err := Verify(offered, answer); err == nil {
				t.Error("the source migrates to a target that does not know the field")
			}
		})
	}
}

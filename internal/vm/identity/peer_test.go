package identity

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
)

func TestPeer_URIs(t *testing.T) {
	tests := map[string]struct {
		uri  string
		want Peer
	}{
		"controller":       {"millwright://controller", Controller()},
		"hypervisor":       {"millwright://vm/pool/vm-1/vm-1-abc", pod},
		"dots":             {"millwright://vm/pool/a.b/c.d", Peer{Namespace: "pool", VM: "a.b", Pod: "c.d"}},
		"nothing":          {uri: ""},
		"other scheme":     {uri: "https://controller"},
		"more":             {uri: "millwright://controller/"},
		"missing name":     {uri: "millwright://vm/pool/vm-1"},
		"additional name":  {uri: "millwright://vm/pool/vm-1/pod/x"},
		"empty name":       {uri: "millwright://vm/pool//pod"},
		"upwards":          {uri: "millwright://vm/pool/../vm-1-abc"},
		"escaped":          {uri: "millwright://vm/pool/a%2fb/pod"},
		"capitals":         {uri: "millwright://vm/pool/../vm-1-abc"},
		"a query":          {uri: "millwright://vm/pool/vm/pod?x"},
		"a line":           {uri: "millwright://vm/pool/vm/pod\n"},
		"too long":         {uri: "millwright://vm/pool/vm/" + strings.Repeat("a", 300)},
		"only empty names": {uri: "millwright://vm///"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parsePeer(test.uri)
			if test.want == (Peer{}) {
				if !errors.Is(err, ErrNotAPeer) {
					t.Errorf("got %v, %v, want ErrNotAPeer", got, err)
				}
				return
			}
			if err != nil || got != test.want || got.String() != test.uri {
				t.Errorf("got %v, %v, want %v", got, err, test.want)
			}
		})
	}
}

func FuzzParsePeer(f *testing.F) {
	f.Add(Controller().String())
	f.Add(pod.String())
	f.Add("millwright://vm/../../controller")
	f.Fuzz(func(t *testing.T, uri string) {
		if p, err := parsePeer(uri); err == nil && p.String() != uri {
			t.Errorf("%q was parsed as %q", uri, p.String())
		}
	})
}

func TestPeer_ZeroValueIsInvalid(t *testing.T) {
	if (Peer{}).IsController() || !Controller().IsController() {
		t.Error("IsController is wrong for the zero Peer or for the controller")
	}
	wantCode(t, RequireVM(context.Background(), pod.Namespace, pod.VM, pod.Pod), codes.Unauthenticated)
}

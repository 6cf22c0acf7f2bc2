package vm

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/internal/cli/args"
)

func TestPortForward_Arguments(t *testing.T) {
	for text, want := range map[string]portPair{"80": {80, 80}, "8080:80": {8080, 80}, ":80": {0, 80}, "0:80": {0, 80}, "65535": {65535, 65535}} {
		got, err := parsePair(text)
		if err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
	for name, test := range map[string]struct {
		ports, addresses []string
		stdio            bool
	}{
		"no port":              {ports: []string{""}},
		"port 0":               {ports: []string{"0"}},
		"too high a port":      {ports: []string{"65536"}},
		"too high a local one": {ports: []string{"65536:80"}},
		"a name":               {ports: []string{"http"}},
		"an address":           {ports: []string{"127.0.0.1:8080:80"}},
		"no remote port":       {ports: []string{"8080:"}},
		"a host name":          {ports: []string{"80"}, addresses: []string{"example.com"}},
		"an empty address":     {ports: []string{"80"}, addresses: []string{""}},
		"no address":           {ports: []string{"80"}, addresses: []string{}},
		"--stdio, two ports":   {ports: []string{"80", "81"}, stdio: true},
		"--stdio, local port":  {ports: []string{"8080:80"}, stdio: true},
	} {
		if test.addresses == nil {
			test.addresses = []string{localhost}
		}
		p := &portForward{addresses: test.addresses, stdio: test.stdio}
		if err := p.parse(test.ports); !isUsageError(err) {
			t.Errorf("%s: %v, want a usage error", name, err)
		}
	}
}

func isUsageError(err error) bool {
	_, is := errors.AsType[*args.UsageError](err)
	return is
}

// Localhost stands for both IP versions, and a free port is the same for all addresses.
func TestPortForward_Listens(t *testing.T) {
	p := &portForward{addresses: []string{localhost, "127.0.0.2"}}
	listeners, err := p.listen(0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	ports := map[int]bool{}
	for _, listener := range listeners {
		defer listener.Close()
		address := listener.Addr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
		ports[int(address.Port())] = true
		if address.Addr().Is4() {
			got = append(got, address.Addr().String())
		}
	}
	if diff := cmp.Diff([]string{"127.0.0.1", "127.0.0.2"}, got); diff != "" || len(ports) != 1 {
		t.Errorf("%d ports; addresses (-want +got):\n%s", len(ports), diff)
	}
	for port := range ports {
		more, err := p.listen(uint16(port))
		if err == nil || len(more) > 0 {
			t.Errorf("a port that is in use: %v, %v", more, err)
		}
	}
}

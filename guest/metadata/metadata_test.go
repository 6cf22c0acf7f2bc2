package metadata

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func encode(t *testing.T, message proto.Message) []byte {
	t.Helper()
	encoded, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

var (
	v4 = &vmpb.PTPAddress{Ip: "10.77.0.16", PeerIp: "10.77.0.2"}
	v6 = &vmpb.PTPAddress{Ip: "fd00::16", PeerIp: "fd00::2"}

	link4 = Link{Address: netip.MustParseAddr("10.77.0.16"), Peer: netip.MustParseAddr("10.77.0.2")}
	link6 = Link{Address: netip.MustParseAddr("fd00::16"), Peer: netip.MustParseAddr("fd00::2")}
)

func TestParse_ReadsHypervisorMetadata(t *testing.T) {
	for name, test := range map[string]struct {
		message *vmpb.VMMetadata
		want    Metadata
	}{
		"Nothing":    {&vmpb.VMMetadata{}, Metadata{}},
		"NoNetwork":  {&vmpb.VMMetadata{Name: "a"}, Metadata{Name: "a"}},
		"NoAddress":  {&vmpb.VMMetadata{Name: "a", NetworkConfig: &vmpb.NetworkConfig{}}, Metadata{Name: "a"}},
		"V4":         {&vmpb.VMMetadata{Name: "a", NetworkConfig: &vmpb.NetworkConfig{V4: v4}}, Metadata{"a", []Link{link4}}},
		"V6":         {&vmpb.VMMetadata{Name: "a", NetworkConfig: &vmpb.NetworkConfig{V6: v6}}, Metadata{"a", []Link{link6}}},
		"BothInTurn": {&vmpb.VMMetadata{Name: "a", NetworkConfig: &vmpb.NetworkConfig{V6: v6, V4: v4}}, Metadata{"a", []Link{link4, link6}}},
	} {
		t.Run(name, func(t *testing.T) {
			padded := append(encode(t, test.message), 0, 0, 0)
			got, err := Parse(padded)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestParse_RejectsInvalidMetadata(t *testing.T) {
	for name, message := range map[string][]byte{
		"Truncated":    encode(t, &vmpb.VMMetadata{Name: "a"})[:2],
		"NoIP":         encode(t, &vmpb.VMMetadata{NetworkConfig: &vmpb.NetworkConfig{V4: &vmpb.PTPAddress{PeerIp: "10.0.0.2"}}}),
		"NoPeer":       encode(t, &vmpb.VMMetadata{NetworkConfig: &vmpb.NetworkConfig{V4: &vmpb.PTPAddress{Ip: "10.0.0.2"}}}),
		"WrongVersion": encode(t, &vmpb.VMMetadata{NetworkConfig: &vmpb.NetworkConfig{V4: v6}}),
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := Parse(message); !errors.Is(err, ErrEncoding) {
				t.Errorf("Parse = %v, %v, want ErrEncoding", got, err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{0x0a, 0x04, 'v', 'm', '-', '1'})
	f.Fuzz(func(t *testing.T, message []byte) {
		if _, err := Parse(message); err != nil && !errors.Is(err, ErrEncoding) {
			t.Errorf("%v does not wrap ErrEncoding", err)
		}
	})
}

package network

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// The wanted bytes are what iproute2's commands send, in little-endian machines' order.
func TestMessages(t *testing.T) {
	ip4, peer4 := netip.MustParseAddr("10.77.0.16"), netip.MustParseAddr("10.77.0.2")
	ip6, peer6 := netip.MustParseAddr("fd00::16"), netip.MustParseAddr("fd00::2")
	for name, test := range map[string]struct {
		request *request
		want    string
	}{
		"LinkUp": {
			linkUp(2),
			"20000000" + "1000" + "0500" + "07000000" + "00000000" + // length, type, flags, number, sender
				"00000000" + "02000000" + "01000000" + "01000000",
		},
		"Address4": {
			addAddress(2, ip4, peer4),
			"28000000" + "1400" + "0505" + "07000000" + "00000000" +
				"02200200" + "02000000" +
				"08000200" + "0a4d0010" + // local
				"08000100" + "0a4d0002", // peer
		},
		"Route4": {
			addDefaultRoute(2, peer4),
			"2c000000" + "1800" + "0505" + "07000000" + "00000000" +
				"02000000" + "fe030001" + "00000000" +
				"08000500" + "0a4d0002" + "08000400" + "02000000",
		},
		"Address6": {
			addAddress(3, ip6, peer6),
			"40000000" + "1400" + "0505" + "07000000" + "00000000" +
				"0a800200" + "03000000" +
				"14000200" + "fd000000000000000000000000000016" +
				"14000100" + "fd000000000000000000000000000002",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := hex.EncodeToString(test.request.bytes(7)); got != test.want {
				t.Errorf("message = %s\nwant      %s", got, test.want)
			}
		})
	}
}

func TestAttributesArePadded(t *testing.T) {
	r := &request{}
	r.attribute(1, []byte{0xaa})
	r.attribute(2, nil)
	if got, want := hex.EncodeToString(r.body), "05000100"+"aa000000"+"04000200"; got != want {
		t.Errorf("attributes = %s, want %s", got, want)
	}
}

func TestParseAnswer(t *testing.T) {
	answer := func(text string) []byte {
		decoded, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return decoded
	}
	for name, test := range map[string]struct {
		answer []byte
		want   error
	}{
		"Success":     {answer("24000000" + "0200" + "0000" + "07000000" + "00000000" + "00000000"), nil},
		"Refusal":     {answer("24000000" + "0200" + "0000" + "07000000" + "00000000" + "ffffffff"), unix.EPERM},
		"OtherNumber": {answer("24000000" + "0200" + "0000" + "08000000" + "00000000" + "00000000"), ErrAnswer},
		"OtherType":   {answer("24000000" + "1000" + "0000" + "07000000" + "00000000" + "00000000"), ErrAnswer},
		"Short":       {answer("24000000"), ErrAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			if err := parseAnswer(test.answer, 7); !errors.Is(err, test.want) {
				t.Errorf("parseAnswer = %v, want %v", err, test.want)
			}
		})
	}
}

//go:build linux

package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"

	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// TestHypervisor_RejectsInvalidEnvironment checks that an invalid environment of a hypervisor is reported in the status of
// its Pod, with the name of the variable and the field, before any disk is changed.
func TestHypervisor_RejectsInvalidEnvironment(t *testing.T) {
	authority, err := identity.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificate, _ := authority.PEM()
	const fine = `{"name":"vm","namespace":"ns","mode":"SM_RUN","leaseMode":"LM_STORAGE_LOCKING","controllerEndpoint":"127.0.0.1:1","uuid":"6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21"}`
	cases := map[string]struct {
		env      map[string]string
		wantText []string
	}{
		"nothing":           {map[string]string{}, []string{vmpb.EnvSpec}},
		"no protobuf":       {map[string]string{vmpb.EnvSpec: "{["}, []string{vmpb.EnvSpec}},
		"no mode":           {map[string]string{vmpb.EnvSpec: strings.Replace(fine, "SM_RUN", "SM_UNKNOWN", 1)}, []string{vmpb.EnvSpec, "mode"}},
		"full leases":       {map[string]string{vmpb.EnvSpec: strings.Replace(fine, "LM_STORAGE_LOCKING", "LM_FULL_LEASES", 1)}, []string{"lease_duration"}},
		"two addresses":     {map[string]string{vmpb.EnvSpec: strings.Replace(fine, `"mode"`, `"address":["10.0.0.4","10.0.0.5"],"mode"`, 1)}, []string{"address"}},
		"no authority":      {map[string]string{vmpb.EnvSpec: fine}, []string{vmpb.EnvAuthority}},
		"one file":          {map[string]string{vmpb.EnvSpec: fine, vmpb.EnvAuthority: string(certificate), vmpb.EnvCertFile: "/tls.crt"}, []string{vmpb.EnvKeyFile}},
		"network no prefix": {map[string]string{vmpb.EnvSpec: fine, vmpb.EnvAuthority: string(certificate), vmpb.EnvUserNetwork: "10.0.0.1"}, []string{vmpb.EnvUserNetwork, "10.0.0.1"}},
		"bandwidth":         {map[string]string{vmpb.EnvSpec: fine, vmpb.EnvAuthority: string(certificate), vmpb.EnvMigrationBandwidth: "100M"}, []string{vmpb.EnvMigrationBandwidth, "100M"}},
		"overlay no port":   {map[string]string{vmpb.EnvSpec: fine, vmpb.EnvAuthority: string(certificate), vmpb.EnvOverlay: "10.0.0.1"}, []string{vmpb.EnvOverlay, "10.0.0.1"}},
		"overlay name":      {map[string]string{vmpb.EnvSpec: fine, vmpb.EnvAuthority: string(certificate), vmpb.EnvOverlay: "example.com:8462"}, []string{vmpb.EnvOverlay, "example.com"}},
		"overlay MTU":       {map[string]string{vmpb.EnvSpec: fine, vmpb.EnvAuthority: string(certificate), vmpb.EnvOverlay: "[10.0.0.1]:8462", vmpb.EnvOverlayMTU: "large"}, []string{vmpb.EnvOverlayMTU, "large"}},
		"no probe":          {map[string]string{vmpb.EnvSpec: fine, vmpb.EnvAuthority: string(certificate), vmpb.EnvPorts: "80"}, []string{vmpb.EnvProbe}},
		"port":              {map[string]string{vmpb.EnvSpec: fine, vmpb.EnvAuthority: string(certificate), vmpb.EnvPorts: "80,0", vmpb.EnvProbe: "tcp://:80"}, []string{vmpb.EnvPorts, `"0"`}},
		"UDP no probe":      {map[string]string{vmpb.EnvSpec: fine, vmpb.EnvAuthority: string(certificate), vmpb.EnvUDPPorts: "53"}, []string{vmpb.EnvProbe}},
		"UDP port":          {map[string]string{vmpb.EnvSpec: fine, vmpb.EnvAuthority: string(certificate), vmpb.EnvUDPPorts: "53/udp", vmpb.EnvProbe: "tcp://:80"}, []string{vmpb.EnvUDPPorts, `"53/udp"`}},
		"host port":         {map[string]string{vmpb.EnvSpec: fine, vmpb.EnvAuthority: string(certificate), vmpb.EnvHostPorts: "16443,99999"}, []string{vmpb.EnvHostPorts, "99999"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, runHypervisor, tc.env, tc.wantText...)
		})
	}
}

// wantRefused checks that a process exits immediately for an environment, reports the reason in the termination
// message, and changes nothing.
func wantRefused(t *testing.T, run func(context.Context, func(string) string, io.Writer) error, env map[string]string, wantText ...string) {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "dev"), 0o700); err != nil {
		t.Fatal(err)
	}
	env[vmpb.EnvRoot] = root
	err := run(t.Context(), func(name string) string { return env[name] }, io.Discard)
	var end *endedError
	if !errors.As(err, &end) || end.Reason != vmpb.EndInvalidSpec {
		t.Fatalf("ends with %v", err)
	}
	text, err := os.ReadFile(filepath.Join(root, vmpb.TerminationMessagePath))
	if err != nil {
		t.Fatal(err)
	}
	var left vmpb.Termination
	if err := json.Unmarshal(text, &left); err != nil || left.Reason != vmpb.EndInvalidSpec {
		t.Errorf("left %s: %v", text, err)
	}
	for _, texts := range wantText {
		if !strings.Contains(left.Message, texts) {
			t.Errorf("%q does not name %s", left.Message, texts)
		}
	}
	if _, err := os.Stat(filepath.Join(root, filepath.Dir(vmpb.RootDiskPath))); !errors.Is(err, os.ErrNotExist) {
		t.Error("the disk's directory was touched")
	}
}

// TestHypervisor_LogsHiddenNetworks checks that these networks are logged, unless the guest cannot reach external
// networks anyway.
func TestHypervisor_LogsHiddenNetworks(t *testing.T) {
	const sentence = "10.77.0.0/16 overlaps 10.0.0.0/8"
	hidden := func(guests netip.Prefix) (string, error) {
		if guests.Addr().Is6() {
			return "", errors.New("unknown")
		}
		return sentence, nil
	}
	for inside, want := range map[bool]bool{false: true, true: false} {
		var log bytes.Buffer
		warnOfHidden(hypervisor.Config{
			Network: []netip.Prefix{netip.MustParsePrefix("fd77::/64"), netip.MustParsePrefix("10.77.0.0/16")}, NoOutside: inside,
			Log: slog.New(slog.NewTextHandler(&log, nil)),
		}, hidden)
		if got := strings.Contains(log.String(), sentence); got != want || strings.Contains(log.String(), "nobody") {
			t.Errorf("inside %v: logged %q", inside, &log)
		}
	}
}

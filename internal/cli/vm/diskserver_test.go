//go:build linux

package vm

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// TestDiskServer_RejectsInvalidEnvironment checks that an invalid environment of a disk server is reported in the status of
// its Pod before any disk is changed.
func TestDiskServer_RejectsInvalidEnvironment(t *testing.T) {
	authority, err := identity.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificate, _ := authority.PEM()
	const fine = `{"name":"vm","namespace":"ns","podName":"vm-disks","mode":"SM_RUN","leaseMode":"LM_FULL_LEASES","leaseDuration":"60s","controllerEndpoint":"127.0.0.1:1"}`
	with := func(name, value string) map[string]string {
		return map[string]string{vmpb.EnvSpec: fine, vmpb.EnvAuthority: string(certificate), name: value}
	}
	cases := map[string]struct {
		env      map[string]string
		wantText string
	}{
		"nothing":       {map[string]string{}, vmpb.EnvSpec},
		"no authority":  {with(vmpb.EnvAuthority, ""), vmpb.EnvAuthority},
		"no port":       {with(vmpb.EnvDisksControl, "127.0.0.1"), vmpb.EnvDisksControl},
		"a port beyond": {with(vmpb.EnvDisksSessions, "127.0.0.1:99999"), vmpb.EnvDisksSessions},
		"a device":      {with(vmpb.EnvSpec, strings.Replace(fine, `"mode"`, `"rootDiskPath":"/dev/millwright/root","mode"`, 1)), "root_disk_path"},
		"a target":      {with(vmpb.EnvSpec, strings.Replace(fine, "SM_RUN", "SM_INCOMING_MIGRATION", 1)), "mode"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, runDiskServer, tc.env, tc.wantText)
		})
	}
}

// TestDiskServer_DefaultAddresses checks that the well-known ports are used if no addresses are given.
func TestDiskServer_DefaultAddresses(t *testing.T) {
	authority, err := identity.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificate, _ := authority.PEM()
	env := map[string]string{
		vmpb.EnvAuthority: string(certificate),
		vmpb.EnvSpec:      `{"name":"vm","namespace":"ns","podName":"vm-disks","mode":"SM_RUN","leaseMode":"LM_STORAGE_LOCKING","controllerEndpoint":"127.0.0.1:1"}`,
	}
	for _, want := range [][2]string{{"[::]:8460", "[::]:8461"}, {"127.0.0.1:0", "[::1]:5"}} {
		config, err := diskServerConfig(func(name string) string { return env[name] }, slog.New(slog.DiscardHandler))
		if got := [2]string{config.Control, config.Sessions}; err != nil || got != want {
			t.Errorf("it listens on %v, %v; want %v", got, err, want)
		}
		env[vmpb.EnvDisksControl], env[vmpb.EnvDisksSessions] = "127.0.0.1:0", "[::1]:5"
	}
}

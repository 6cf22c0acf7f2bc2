package pluginserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/conformance"
	"github.com/millwright-dev/millwright/internal/pluginserver"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/pydriver"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// inAProcess is the example driver, whose process can be killed and restarted.
type inAProcess struct {
	*testing.T
	example     pydriver.Driver
	socket, vms string
	driver      *pluginserver.Driver
	registered  chan struct{}
	process     *exec.Cmd
	output      bytes.Buffer
}

// inPython starts the example driver without any VMs.
func inPython(t *testing.T, example pydriver.Driver) *inAProcess {
	p := &inAProcess{T: t, example: example, socket: filepath.Join(t.TempDir(), "s"), vms: t.TempDir(), registered: make(chan struct{}, 8)}
	endpoint, err := pluginserver.Socket(p.socket)
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{T: t, server: pluginserver.New(pluginserver.Options{
		Add: func(_ string, d *pluginserver.Driver) error { p.driver = d; return nil },
		Log: funcr.New(func(_, line string) {
			if strings.Contains(line, "A driver has registered") {
				p.registered <- struct{}{}
			}
		}, funcr.Options{}),
	})}
	m.start(m.server.Serve, endpoint)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the driver wrote:\n%s", &p.output)
		}
	})
	p.run()
	return p
}

// run starts the process and waits until it has registered.
func (p *inAProcess) run() {
	p.process = p.example.Command(context.Background(), p.socket, p.vms)
	p.process.Stdout, p.process.Stderr = &p.output, &p.output
	if err := p.process.Start(); err != nil {
		p.Fatal(err)
	}
	select {
	case <-p.registered:
	case <-soon(p.T).Done():
		p.Fatal("the driver has not registered")
	}
}

// kill kills the process if it runs.
func (p *inAProcess) kill() {
	_ = p.process.Process.Kill()
	_ = p.process.Wait()
}

// instances returns the IDs of all VMs, which are files.
func (p *inAProcess) instances(context.Context) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(p.vms, "*.json"))
	var ids []string
	for _, file := range files {
		var vm struct{ ID string }
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &vm)
		}
		if err != nil {
			return nil, err
		}
		ids = append(ids, vm.ID)
	}
	return ids, err
}

// TestPythonDriver_Conformance checks that a driver can fulfill the whole contract with nothing from this repository but
// driver.proto.
func TestPythonDriver_Conformance(t *testing.T) {
	tier.All(t)
	example := pydriver.New(t)
	p := inPython(t, example)
	class := func(size string) *v1alpha1.MachineClass {
		return fixture.MachineClass(func(c *v1alpha1.MachineClass) {
			c.Provider, c.ProviderSpec.Raw = "python", fmt.Appendf(nil, `{"size":%q,"tags":{"kubernetes.io/cluster/one":"1"}}`, size)
		})
	}
	conformance.Run(t, func(*testing.T) conformance.Provider {
		return conformance.Provider{
			Driver: p.driver, Class: class("small"), Secret: &corev1.Secret{Data: map[string][]byte{"userData": []byte("#!/bin/sh"), "token": []byte("a-token-of-this-test")}},
			Variants: conformance.Variants{Changed: class("large")},
			Hooks: conformance.Hooks{Instances: p.instances, Restart: func() (driver.Driver, error) {
				p.kill()
				p.run()
				return p.driver, nil
			}},
		}
	})
	p.kill()
	_, err := p.driver.GetMachineStatus(soon(t), statusRequest("one"))
	wantCode(t, err, codes.Unavailable)
	t.Run("RefusedForGood", func(t *testing.T) {
		socket := filepath.Join(t.TempDir(), "s")
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		refusing := grpc.NewServer()
		driverpb.RegisterInfraServer(refusing, driverpb.UnimplementedInfraServer{})
		go func() { _ = refusing.Serve(listener) }()
		t.Cleanup(refusing.Stop)
		process := example.Command(soon(t), socket, t.TempDir())
		out, err := process.CombinedOutput()
		if process.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "UNIMPLEMENTED") {
			t.Errorf("the process ended with %v:\n%s", err, out)
		}
	})
}

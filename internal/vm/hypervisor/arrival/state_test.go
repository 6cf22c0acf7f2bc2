package arrival

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/bulk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// loading is a machine that loads its state as a test specifies.
type loading struct {
	machine
	received func(context.Context) error
}

func (l loading) Received(ctx context.Context) error { return l.received(ctx) }

func never(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func now(context.Context) error       { return nil }

// channel opens the memory channel and closes it, with or without a commit.
func channel(t *testing.T, address string, commit bool) {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) // certificates are not tested here
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.NetConn().Close() })
	if commit {
		err = conn.CloseWrite()
	} else {
		err = conn.NetConn().Close()
	}
	if err != nil {
		t.Error(err)
	}
}

// listen returns a receiver of the memory channel whose QEMU accepts all data.
func listen(t *testing.T, config *tls.Config) *bulk.Receiver {
	t.Helper()
	receiver, err := bulk.Listen("127.0.0.1", func(ctx context.Context, raw net.Conn, _ bulk.Channel) (*tls.Conn, error) {
		conn := tls.Server(raw, config)
		return conn, conn.HandshakeContext(ctx)
	}, map[bulk.Channel]bulk.Dial{bulk.Memory: func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { _ = theirs.Close() })
		return ours, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(receiver.Close)
	return receiver
}

func TestArrival_CallIsRefusedOnceSourceHasConnected(t *testing.T) {
	server := httptest.NewTLSServer(nil)
	t.Cleanup(server.Close)
	a := newArrival(func(*Options) {})
	a.receiver, a.them = listen(t, server.TLS), id("web-1", 1)
	again := call{request: offer(id("web-1", 1), "pc")}
	wantCode(t, a.again(again).err, codes.OK)
	channel(t, a.receiver.Address(bulk.Memory), true)
	<-a.receiver.End()
	wantCode(t, a.again(again).err, codes.FailedPrecondition)
}

// The target asks for the authority only after QEMU has loaded the state and the source has committed.
func TestArrival_SwitchoverNeedsStateAndCommit(t *testing.T) {
	server := httptest.NewTLSServer(nil)
	t.Cleanup(server.Close)
	commits, cuts := true, false
	const long, short = time.Minute, 300 * time.Millisecond // short is how long to check that nothing happens
	for name, test := range map[string]struct {
		received func(context.Context) error
		commits  *bool // if nil, the channel stays open
		limit    time.Duration
		want     handover.TargetState
	}{
		"loaded and committed":           {now, &commits, long, handover.Switching},
		"loaded, not committed":          {now, nil, short, handover.Gone},
		"committed, not loaded":          {never, &commits, short, handover.Gone},
		"loaded, but the channel is cut": {now, &cuts, long, handover.Gone},
		"the state cannot be loaded":     {func(context.Context) error { return errors.New("no such device") }, &commits, long, handover.Gone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newArrival(func(*Options) {})
			receiver := listen(t, server.TLS)
			a.receiver, a.machine = receiver, loading{machine{make(chan struct{})}, test.received}
			a.response = &vmpb.StartMigrationResponse{MigrationProtocol: negotiation.Offer(negotiation.Machine{SharedDisk: true})[0]}
			a.take(handover.Called)
			if test.commits != nil {
				channel(t, receiver.Address(bulk.Memory), *test.commits)
			}
			ctx, cancel := context.WithTimeout(t.Context(), test.limit)
			defer cancel()
			if err := a.awaitState(ctx); (err == nil) != (test.want == handover.Switching) || a.target.State() != test.want {
				t.Errorf("error = %v, target state = %s, want %s", err, a.target.State(), test.want)
			}
		})
	}
}

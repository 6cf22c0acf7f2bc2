package overlay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	overlaypb "github.com/millwright-dev/millwright/proto/overlay"
)

const (
	// firstPause and lastPause limit the time until a failed call is repeated.
	firstPause, lastPause = 200 * time.Millisecond, 10 * time.Second
	// unsupportedPause is that time if the controller has no overlay.
	unsupportedPause = 5 * time.Minute
)

// Follow announces the endpoint to the VM controller at the other side of the connection, and applies its updates until
// the context is canceled. While the controller is unavailable, everything stays as it is.
func (e *Endpoint) Follow(ctx context.Context, conn grpc.ClientConnInterface, us *overlaypb.Process) {
	client := overlaypb.NewOverlayClient(conn)
	var reporting sync.WaitGroup
	defer reporting.Wait()
	reporting.Go(func() { e.reportSilent(ctx, client, us) })
	request := &overlaypb.JoinRequest{Us: us, PublicKey: e.public[:], Endpoint: e.address.String()}
	pause := firstPause
	for ctx.Err() == nil {
		opened := time.Now()
		err := e.follow(ctx, client, request)
		if ctx.Err() != nil {
			return
		}
		if time.Since(opened) > lastPause {
			pause = firstPause
		}
		wait := pause + rand.N(pause/5+1)
		if status.Code(err) == codes.Unimplemented {
			wait = unsupportedPause
		}
		e.config.Log.Info("the VM controller does not report the locations of other virtual machines; retrying", "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		pause = min(2*pause, lastPause)
	}
}

// follow applies the updates of one stream until it is closed.
func (e *Endpoint) follow(ctx context.Context, client overlaypb.OverlayClient, request *overlaypb.JoinRequest) error {
	ctx, release := context.WithCancel(ctx) // releases the stream if the server does not close it
	defer release()
	stream, err := client.Join(ctx, request, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		update, err := updateOf(message)
		if err != nil {
			e.config.Log.Warn("ignoring invalid locations of virtual machines", "error", err)
		}
		e.Apply(update)
	}
}

// reportSilent reports changes of Silent until the context is canceled. A report that fails is not repeated before the
// next change: it is only for users.
func (e *Endpoint) reportSilent(ctx context.Context, client overlaypb.OverlayClient, us *overlaypb.Process) {
	for {
		select {
		case <-e.silentChanged:
		case <-ctx.Done():
			return
		}
		request := &overlaypb.ReportSilentRequest{Us: us}
		for _, m := range e.Silent() {
			request.Vms = append(request.Vms, m.VM)
		}
		request.Vms = request.Vms[:min(len(request.Vms), maxReported)]
		if _, err := client.ReportSilent(ctx, request, grpc.WaitForReady(true)); err != nil && ctx.Err() == nil {
			e.config.Log.Info("cannot report which hypervisors do not respond", "error", err)
		}
	}
}

// maxReported is the maximum number of VMs in a report.
const maxReported = 32

// Leave asks the VM controller to revoke the key of a process whose guest has terminated for good. No other hypervisor
// accepts it any more.
func Leave(ctx context.Context, conn grpc.ClientConnInterface, us *overlaypb.Process) error {
	_, err := overlaypb.NewOverlayClient(conn).Leave(ctx, &overlaypb.LeaveRequest{Us: us})
	return err
}

// updateOf converts a message. It ignores invalid peers and returns an error about the last of them.
func updateOf(message *overlaypb.Update) (Update, error) {
	update := Update{Snapshot: message.GetSnapshot()}
	var invalid error
	for _, peer := range message.GetPeers() {
		switch peer.GetState() {
		case overlaypb.Peer_STATE_PRESENT:
			m, err := memberOf(peer)
			if err != nil {
				invalid = fmt.Errorf("%s: %w", peer.GetVm(), err)
				continue
			}
			update.Present = append(update.Present, m)
		case overlaypb.Peer_STATE_ABSENT:
			update.Absent = append(update.Absent, peer.GetVm())
		case overlaypb.Peer_STATE_UNCHANGED:
			update.Unchanged = append(update.Unchanged, peer.GetVm())
		}
	}
	return update, invalid
}

func memberOf(peer *overlaypb.Peer) (Member, error) {
	m := Member{VM: peer.GetVm()}
	if copy(m.Key[:], peer.GetPublicKey()) != len(m.Key) || len(peer.GetPublicKey()) != len(m.Key) {
		return Member{}, fmt.Errorf("a key of %d bytes is not a public key", len(peer.GetPublicKey()))
	}
	var err error
	if m.Endpoint, err = netip.ParseAddrPort(peer.GetEndpoint()); err != nil || m.Endpoint.Addr().Zone() != "" {
		return Member{}, fmt.Errorf("%q is not an endpoint", peer.GetEndpoint())
	}
	for _, text := range peer.GetAddresses() {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Zone() != "" { // a zone may contain any text, and WireGuard's settings are text
			return Member{}, fmt.Errorf("%q is not the address of a guest", text)
		}
		m.Addresses = append(m.Addresses, address)
	}
	return m, nil
}

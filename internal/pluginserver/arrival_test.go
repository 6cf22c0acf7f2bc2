package pluginserver_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millwright-dev/millwright/driver/codes"
)

// unfinished is a message that is announced with its length but sent without its end.
type unfinished struct {
	rest   int
	sent   *atomic.Int64
	closed <-chan struct{}
}

func (u *unfinished) Read(p []byte) (int, error) {
	if u.rest == 0 {
		<-u.closed
		return 0, io.EOF
	}
	n := min(u.rest, len(p))
	clear(p[:n])
	u.rest -= n
	u.sent.Add(int64(n))
	return n, nil
}

// TestStream_UnfinishedMessagesUseLittleMemory checks the memory used by a plug-in that begins many long messages and
// completes none.
func TestStream_UnfinishedMessagesUseLittleMemory(t *testing.T) {
	const streams, length = 64, 15 << 20
	for _, method := range []string{"Register", "GetMachineClass", "GetSecret"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newManager(t)
				connection := func() *http.Transport {
					made := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
						return m.network.Dial(ctx, address)
					}}
					made.Protocols.SetUnencryptedHTTP2(true)
					t.Cleanup(made.CloseIdleConnections)
					return made
				}
				attackers := []*http.Transport{connection(), connection(), connection(), connection()}
				head := binary.BigEndian.AppendUint32([]byte{0}, length+1)
				var sent atomic.Int64
				closed, statuses := make(chan struct{}), make(chan string, streams)
				for i := range streams {
					request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://manager/millwright.driver.Infra/"+method,
						io.MultiReader(bytes.NewReader(head), &unfinished{length, &sent, closed}))
					if err != nil {
						t.Fatal(err)
					}
					request.Header.Set("Content-Type", "application/grpc")
					request.Header.Set("Te", "trailers")
					go func() {
						response, err := attackers[i%len(attackers)].RoundTrip(request)
						if err != nil {
							statuses <- err.Error()
							return
						}
						_ = response.Body.Close()
						statuses <- response.Header.Get("Grpc-Status")
					}()
				}
				synctest.Wait()
				if got := sent.Load() >> 20; got < length>>20 || got > 72 {
					t.Errorf("the manager used %d MiB, want at most 4 messages and a window for each other stream", got)
				}
				time.Sleep(time.Minute)
				for range streams {
					if got := <-statuses; got != "4" { // DEADLINE_EXCEEDED
						t.Errorf("a stream ended with %s", got)
					}
				}
				close(closed)

				// Other drivers are not affected.
				r := m.raw()
				r.registered(registration())
				done := ask(t.Context(), <-m.added, "one")
				op := r.receive().GetOperation()
				if _, err := r.client.GetSecret(t.Context(), op.GetSecret()); err != nil {
					t.Error(err)
				}
				r.respond(op)
				wantCode(t, (<-done).err, codes.OK)
			})
		})
	}
}

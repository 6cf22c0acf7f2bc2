package console

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// plugged returns a console and the guest's side of its port.
func plugged(t *testing.T) (*Console, net.Conn) {
	ours, guests := net.Pipe()
	t.Cleanup(func() { _ = guests.Close() })
	console := New(ours)
	return console, guests
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, guest io.Writer, output []byte) {
	t.Helper()
	if _, err := guest.Write(output); err != nil {
		t.Fatal(err)
	}
}

// all reads a client until there is no more output.
func all(t *testing.T, client *Client) ([]byte, error) {
	t.Helper()
	var got []byte
	for {
		output, err := client.Next(t.Context())
		if err != nil {
			return got, err
		}
		got = append(got, output...)
	}
}

func TestConsole_NewClientReceivesHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		console, guest := plugged(t)
		output := bytes.Repeat([]byte("0123456789abcde\n"), 3*HistorySize/16)
		for chunk := output; len(chunk) > 0; chunk = chunk[1024:] {
			write(t, guest, chunk[:1024])
		}
		synctest.Wait()
		client := console.Attach()
		write(t, guest, []byte("\x00\xff\r\n"))
		_ = guest.Close()
		got, err := all(t, client)
		want := append(append([]byte(nil), output[len(output)-HistorySize:]...), "\x00\xff\r\n"...)
		if !errors.Is(err, io.EOF) || !bytes.Equal(want, got) {
			t.Errorf("got %d bytes and %v, want the last %d, the new ones and EOF", len(got), err, len(want))
		}
		// Clients that attach after the console has ended still receive the last output.
		got, err = all(t, console.Attach())
		if !errors.Is(err, io.EOF) || !bytes.Equal(want[len(want)-HistorySize:], got) {
			t.Errorf("after the console has ended: got %d bytes and %v", len(got), err)
		}
	})
}

func TestConsole_OnlySlowClientIsDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		console, guest := plugged(t)
		slow, quick := console.Attach(), console.Attach()
		chunk := bytes.Repeat([]byte("x"), 1024)
		received := 0
		for range 2 * clientLimit / len(chunk) {
			write(t, guest, chunk)
			got, err := quick.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			received += len(got)
		}
		if received != 2*clientLimit {
			t.Errorf("the fast client got %d bytes, want %d", received, 2*clientLimit)
		}
		got, err := all(t, slow)
		if !errors.Is(err, ErrSlowClient) || len(got) != clientLimit {
			t.Errorf("the slow client got %d bytes and %v, want %d and ErrSlowClient", len(got), err, clientLimit)
		}
		if err := slow.Write(t.Context(), []byte("x")); !errors.Is(err, ErrSlowClient) {
			t.Errorf("write of the slow client: %v, want ErrSlowClient", err)
		}
		_ = guest.Close()
		synctest.Wait()
	})
}

func TestConsole_MessagesAreNotInterleaved(t *testing.T) {
	console, guest := plugged(t)
	const writers, messages, size = 4, 50, 5000
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() {
			client := console.Attach()
			defer client.Close()
			message := bytes.Repeat([]byte{byte(i)}, size)
			for range messages {
				if err := client.Write(t.Context(), message); err != nil {
					t.Error(err)
				}
			}
		})
	}
	counts := map[byte]int{}
	buffer := make([]byte, size)
	for range writers * messages {
		if _, err := io.ReadFull(guest, buffer); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(buffer, bytes.Repeat(buffer[:1], size)) {
			t.Fatal("bytes of another message are in between")
		}
		counts[buffer[0]]++
	}
	group.Wait()
	if diff := cmp.Diff(map[byte]int{0: messages, 1: messages, 2: messages, 3: messages}, counts); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

func TestConsole_BusyGuestBlocksOnlyWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		console, guest := plugged(t)
		client := console.Attach()
		ctx, cancel := context.WithCancel(t.Context())
		must(t, client.Write(ctx, []byte("begun"))) // accepted, but stuck in the pipe
		stuck := make(chan error)
		go func() { stuck <- client.Write(ctx, []byte("canceled")) }()
		synctest.Wait()
		write(t, guest, []byte("output"))
		if got, err := client.Next(t.Context()); string(got) != "output" || err != nil {
			t.Errorf("next = %q, %v", got, err)
		}
		cancel()
		if err := <-stuck; !errors.Is(err, context.Canceled) {
			t.Errorf("error = %v, want context.Canceled", err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(guest, got); err != nil || string(got) != "begun" {
			t.Errorf("guest got %q, %v; want the first message", got, err)
		}
		_ = guest.Close()
		synctest.Wait()
		if err := client.Write(t.Context(), []byte("x")); !errors.Is(err, ErrEnded) {
			t.Errorf("after the console has ended: %v, want ErrEnded", err)
		}
	})
}

func TestClient_CallsFailAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		console, guest := plugged(t)
		closed, other := console.Attach(), console.Attach()
		waiting := make(chan error)
		go func() {
			_, err := closed.Next(t.Context())
			waiting <- err
		}()
		synctest.Wait()
		closed.Close()
		closed.Close()
		if err := <-waiting; !errors.Is(err, ErrClientClosed) {
			t.Errorf("next = %v, want ErrClientClosed", err)
		}
		if err := closed.Write(t.Context(), []byte("x")); !errors.Is(err, ErrClientClosed) {
			t.Errorf("write = %v, want ErrClientClosed", err)
		}
		if err := other.Write(t.Context(), nil); err != nil {
			t.Errorf("empty message: %v", err)
		}
		write(t, guest, []byte("still here"))
		if got, err := other.Next(t.Context()); string(got) != "still here" || err != nil {
			t.Errorf("other client: %q, %v", got, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := other.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("next = %v, want context.Canceled", err)
		}
		_ = guest.Close()
		synctest.Wait()
	})
}

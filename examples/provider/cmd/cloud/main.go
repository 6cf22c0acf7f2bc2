// Command cloud runs the cloud of this example until SIGTERM or Ctrl-C. Its VMs are not saved.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/millwright-dev/millwright/examples/provider/cloud"
)

func main() {
	address := flag.String("address", "127.0.0.1:7070", "address to listen on")
	token := flag.String("token", "secret", "token that clients must send")
	capacity := flag.Int("capacity", 100, "maximum number of VMs")
	flag.Parse()
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on http://%s", listener.Addr())
	server := &http.Server{Handler: cloud.New(*token, *capacity), ReadHeaderTimeout: 10 * time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

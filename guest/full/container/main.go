// Command container is the only program of the container image that is part of the full guest: no registry is
// needed for Pods that pause, serve HTTP, or send requests.
//
//	container pause       waits for a signal
//	container web         serves HTTP on port 8080
//	container get URL     prints the response of the URL; https as the service account of the Pod
//	container lookup NAME prints the addresses of a name, or host and port if it is one like _http._tcp.web
//	container stop NAME   stops the processes of that name, with SIGSTOP: in a privileged Pod with
//	                      hostPID, programs of the node
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "container:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: container pause | web | get URL | lookup NAME | stop NAME")

func run(ctx context.Context, args []string, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "pause":
		<-ctx.Done()
		return nil
	case len(args) == 1 && args[0] == "web":
		return serve(ctx, out)
	case len(args) == 2 && args[0] == "get":
		return get(ctx, args[1], serviceAccount, out)
	case len(args) == 2 && args[0] == "lookup":
		return lookup(ctx, args[1], out)
	case len(args) == 2 && args[0] == "stop":
		return stop(args[1], out)
	}
	return errUsage
}

// leaveFor is how long the server continues after SIGTERM: until then, others may still send
// requests, since they notice later.
const leaveFor = 5 * time.Second

// serve serves HTTP until the context is done, and a while longer. /ready is then unavailable.
func serve(ctx context.Context, out io.Writer) error {
	server := &http.Server{Addr: ":8080", Handler: handler(ctx, out), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	fmt.Fprintln(out, "serving on", server.Addr)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	fmt.Fprintln(out, "leaving")
	select {
	case err := <-ended:
		return err
	case <-time.After(leaveFor):
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveFor)
	defer cancel()
	return server.Shutdown(last)
}

// handler returns the handler of the server, which returns its name, and that of its Node if NODE_NAME is set.
func handler(ctx context.Context, out io.Writer) http.Handler {
	mux := http.NewServeMux()
	host, _ := os.Hostname() // without a name there is none to show
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(out, r.RemoteAddr, r.URL.Path)
		fmt.Fprintf(w, "%s on %s\n", host, os.Getenv("NODE_NAME"))
	})
	mux.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		if ctx.Err() != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	return mux
}

const (
	// serviceAccount is the directory with the credentials of a Pod for the API server.
	serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"
	// responseTimeout is how long a response may take.
	responseTimeout = 10 * time.Second
)

func get(ctx context.Context, url, account string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := http.DefaultClient
	if request.URL.Scheme == "https" {
		if client, err = asAccount(request, account); err != nil {
			return err
		}
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if _, err := io.Copy(out, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// asAccount authenticates a request with a service account, and returns a client that trusts its API server.
func asAccount(request *http.Request, account string) (*http.Client, error) {
	files := os.DirFS(account)
	token, err := fs.ReadFile(files, "token")
	if err != nil {
		return nil, err
	}
	authority, err := fs.ReadFile(files, "ca.crt")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	request.Header.Set("Authorization", "Bearer "+string(token))
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}, nil
}

// lookup queries the name server of the Pod, with its search list.
func lookup(ctx context.Context, name string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	if !strings.HasPrefix(name, "_") {
		addresses, err := net.DefaultResolver.LookupHost(ctx, name)
		for _, address := range addresses {
			fmt.Fprintln(out, address)
		}
		return err
	}
	_, records, err := net.DefaultResolver.LookupSRV(ctx, "", "", name)
	for _, record := range records {
		fmt.Fprintln(out, net.JoinHostPort(strings.TrimSuffix(record.Target, "."), strconv.Itoa(int(record.Port))))
	}
	return err
}

// stop stops the processes with a name. It is an error if there are none.
func stop(name string, out io.Writer) error {
	comms, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return err
	}
	found := false
	for _, comm := range comms {
		text, err := os.ReadFile(comm)
		if err != nil || strings.TrimSpace(string(text)) != name {
			continue // it has ended, or is another one
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(comm)))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGSTOP)
		}
		if err != nil {
			return fmt.Errorf("stopping %s: %w", name, err)
		}
		fmt.Fprintln(out, "stopped process", pid)
		found = true
	}
	if !found {
		return fmt.Errorf("there is no process %q", name)
	}
	return nil
}

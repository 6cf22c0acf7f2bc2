package vms

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
)

// door is a port on which a process of a cluster listens.
type door struct {
	process string
	address string
}

// doors returns all TCP ports of a cluster's processes.
func (c *cluster) doors() []door {
	c.t.Helper()
	var doors []door
	for _, running := range c.processes("") {
		process, err := procfs.NewProc(running.PID)
		if err != nil {
			continue // it has exited
		}
		name, _ := process.Comm()
		targets, _ := process.FileDescriptorTargets()
		for _, socket := range listening(c.t, running.PID) {
			if slices.Contains(targets, fmt.Sprintf("socket:[%d]", socket.Inode)) {
				doors = append(doors, door{name, net.JoinHostPort(socket.LocalAddr.String(), fmt.Sprint(socket.LocalPort))})
			}
		}
	}
	return doors
}

// listening returns the listening TCP sockets in the network namespace of a process.
func listening(t *testing.T, pid int) (found procfs.NetTCP) {
	t.Helper()
	const listen = 0x0a
	fs, err := procfs.NewFS(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		t.Fatal(err)
	}
	//lint:ignore SA1019 netlink cannot read the sockets of another network namespace
	for _, read := range []func() (procfs.NetTCP, error){fs.NetTCP, fs.NetTCP6} {
		sockets, err := read()
		if err != nil {
			continue // it has exited, or there is no IPv6
		}
		for _, socket := range sockets {
			if socket.St == listen {
				found = append(found, socket)
			}
		}
	}
	return found
}

// idle is the number of silent connections that an attacker opens to each port.
const idle = 50

// asked are the paths that the attacker requests at each port.
var asked = []string{"/", "/api/v1/secrets", "/metrics", "/configz", "/debug/pprof/heap", "/v3/kv/range", "/../../kubeconfig"}

// attack attacks every port of the cluster without credentials. It checks that only public endpoints respond,
// and detects ports that listen on other addresses than the loopback. The idle connections stay open until the
// end of the test.
func (c *cluster) attack(public map[string][]string) {
	c.t.Helper()
	stranger := forged(c.t)
	for _, door := range c.doors() {
		if host, _, _ := net.SplitHostPort(door.address); !net.ParseIP(host).IsLoopback() {
			c.t.Errorf("%s listens at %s", door.process, door.address)
		}
		for range idle {
			if conn, err := net.Dial("tcp", door.address); err == nil {
				c.t.Cleanup(func() { conn.Close() }) // at the end of the test
			}
		}
		c.shout(door)
		for name, transport := range map[string]*http.Transport{
			"without TLS":           {},
			"without a certificate": {TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
			"as another client":     {TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{stranger}}},
		} {
			c.ask(door, name, transport, public)
		}
	}
}

// ask requests all paths over one kind of connection.
func (c *cluster) ask(door door, how string, transport *http.Transport, public map[string][]string) {
	c.t.Helper()
	transport.DisableKeepAlives = true
	scheme := "http"
	if transport.TLSClientConfig != nil {
		scheme = "https"
	}
	for _, path := range asked {
		client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
		response, err := client.Get(scheme + "://" + door.address + path)
		if err != nil {
			continue
		}
		body, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		response.Body.Close()
		c.t.Logf("%s at %s, %s, %s: %s", door.process, door.address, how, path, response.Status)
		if response.StatusCode < 300 && !slices.Contains(public[door.process], path) {
			c.t.Errorf("%s at %s, %s, %s: %s %q", door.process, door.address, how, path, response.Status, body)
		}
	}
}

// shout sends data that is invalid in every protocol, and frames without an end. The connection must be closed.
func (c *cluster) shout(door door) {
	c.t.Helper()
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	for name, text := range map[string]string{
		"noise":                 strings.Repeat("\xff", 1<<20),
		"a frame of 16 MiB":     preface + "\xff\xff\xff\x00\x00\x00\x00\x00\x01" + strings.Repeat("x", 1<<20),
		"a record that is none": "\x16\x03\x01\xff\xff" + strings.Repeat("\x01", 1<<20),
	} {
		conn, err := net.Dial("tcp", door.address)
		if err != nil {
			c.t.Errorf("%s at %s does not accept: %v", door.process, door.address, err)
			return
		}
		_ = conn.SetDeadline(time.Now().Add(soon))
		_, _ = io.Copy(conn, bytes.NewBufferString(text)) // the connection may be closed meanwhile
		if _, err := io.Copy(io.Discard, bufio.NewReader(conn)); os.IsTimeout(err) {
			c.t.Errorf("%s at %s keeps the connection of who sends %s", door.process, door.address, name)
		}
		conn.Close()
	}
}

// forged is a certificate of an unknown CA for a privileged name.
func forged(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	template.Subject.CommonName, template.Subject.Organization = "kubernetes-admin", []string{"system:masters"}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// privateSockets fails the test if another user can open a socket of the cluster.
func (c *cluster) privateSockets() {
	c.t.Helper()
	number := 0
	err := filepath.WalkDir(c.dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Type()&os.ModeSocket == 0 {
			return nil // it was removed meanwhile, or is not a socket
		}
		number++
		for directory := path; len(directory) >= len(c.dir); directory = filepath.Dir(directory) {
			info, err := os.Stat(directory)
			if err != nil {
				return nil
			}
			if info.Mode().Perm()&0o077 == 0 {
				return nil
			}
		}
		c.t.Errorf("others may open socket %s", path)
		return nil
	})
	if err != nil || number == 0 {
		c.t.Errorf("%d sockets: %v", number, err)
	}
}

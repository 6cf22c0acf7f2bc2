package image

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/net/idna"

	"github.com/millwright-dev/millwright/internal/specialaddress"
)

// lookupLimit is how long this host may take to resolve the name of a server for a proxy.
const lookupLimit = 5 * time.Second

// Access lists what the URLs of images and boot files may access on this host: files of the host, and servers that
// trust connections from the host's own addresses. The authors of URLs are not trusted with either. The zero value
// allows nothing.
type Access struct {
	// Files is the directory whose files may be named by file URLs. Links are followed if they stay in the
	// directory. If empty, file URLs are rejected.
	Files string
	// Servers are addresses that are allowed although they are special; see package specialaddress. Port 0 allows
	// all ports.
	Servers []netip.AddrPort
}

// ParseServers parses Access.Servers: a comma-separated list of addresses in the form IP:PORT, or IP for all
// ports.
func ParseServers(list string) ([]netip.AddrPort, error) {
	var servers []netip.AddrPort
	for text := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' }) {
		server, err := netip.ParseAddrPort(text)
		if err != nil {
			address, notAddress := netip.ParseAddr(text)
			if notAddress != nil {
				return nil, fmt.Errorf("invalid address %q; expected IP or IP:PORT", text)
			}
			server = netip.AddrPortFrom(address, 0)
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// mayDownload reports whether downloads from a server are allowed.
func (a Access) mayDownload(server netip.AddrPort) bool {
	address := server.Addr().Unmap()
	for _, allowed := range a.Servers {
		if allowed.Addr() == address && (allowed.Port() == 0 || allowed.Port() == server.Port()) {
			return true
		}
	}
	return specialaddress.Kind(address) == ""
}

// checkServer returns an error if downloads from a server are not allowed.
func (j *job) checkServer(server netip.AddrPort) error {
	if j.access.mayDownload(server) {
		return nil
	}
	return j.rejected("its server has the address %s, which is %s; the operator of the host can allow it with --image-servers",
		server, specialaddress.Kind(server.Addr()))
}

// maxHeaders limits the headers of a response, in bytes.
const maxHeaders = 64 << 10

// newClient returns a client that checks each address to which it connects, after it has resolved the name. This
// includes the targets of redirects. If a proxy connects instead, the client checks the addresses of the server as
// this host resolves them.
func (j *job) newClient() *http.Client {
	dialer := &net.Dialer{Control: specialaddress.Control(j.checkServer)}
	proxies := httpproxy.FromEnvironment().ProxyFunc()
	return &http.Client{Transport: &http.Transport{
		Proxy: func(r *http.Request) (*url.URL, error) {
			proxy, err := proxies(r.URL)
			if proxy != nil && err == nil {
				err = j.checkProxied(r.Context(), r.URL)
			}
			return proxy, err
		},
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: stallLimit,
		// Go's default of 10 MiB takes much more when it is decoded.
		MaxResponseHeaderBytes: maxHeaders,
		ForceAttemptHTTP2:      true,
		DisableKeepAlives:      true, // the client is used for a single file
	}}
}

// checkProxied returns an error if a proxy must not download from the server of a URL. A name that this host cannot
// resolve is left to the proxy, because hosts that need a proxy often cannot resolve names of the Internet.
func (j *job) checkProxied(ctx context.Context, target *url.URL) error {
	addresses, err := j.resolve(ctx, target.Hostname())
	if err != nil {
		return err
	}
	port := map[string]uint16{"http": 80, "https": 443}[target.Scheme]
	if number, err := strconv.ParseUint(target.Port(), 10, 16); err == nil {
		port = uint16(number)
	}
	for _, address := range addresses {
		if err := j.checkServer(netip.AddrPortFrom(address, port)); err != nil {
			return err
		}
	}
	return nil
}

// resolve returns the addresses of a host for checkProxied; none if they are unknown. It rejects forms of IP addresses
// that only some programs know: this host would consider them names, and the proxy might connect to them.
func (j *job) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if strings.ContainsFunc(host, func(r rune) bool { return r > unicode.MaxASCII }) {
		ascii, err := idna.Lookup.ToASCII(host) // as the client does; it converts digits of other scripts
		if err != nil {
			return nil, j.rejected("its host is not a valid name")
		}
		host = ascii
	}
	host = strings.ToLower(strings.TrimRight(host, "."))
	switch address, err := netip.ParseAddr(host); {
	case err == nil:
		return []netip.Addr{address}, nil
	case strings.Trim(host, hostCharacters) != "" || endsInNumber(host):
		return nil, j.rejected("its host is neither a name nor an IP address in the standard form")
	case host == "localhost" || strings.HasSuffix(host, ".localhost"): // RFC 6761
		return []netip.Addr{netip.IPv6Loopback()}, nil
	}
	limited, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	addresses, err := j.lookup(limited, "ip", host)
	if err != nil {
		return nil, ctx.Err()
	}
	return addresses, nil
}

// hostCharacters are the characters of host names.
const hostCharacters = "abcdefghijklmnopqrstuvwxyz0123456789-_."

// endsInNumber reports whether the last label of a host is a number. No top-level domain is. Some programs read such
// hosts as IPv4 addresses: with fewer parts, or with octal or hexadecimal ones.
func endsInNumber(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	return last != "" && strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x")
}

// Package agent implements a subset of the QEMU guest agent.
//
// The protocol is one JSON object per line in each direction; see "QEMU Guest Agent
// Protocol Reference" in QEMU's documentation.
package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
)

// PortName is the name of the virtio-serial port on which the agent responds.
const PortName = "org.qemu.guest_agent.0"

// Version is the version that guest-info returns: the version of the protocol's documentation.
const Version = "7.2.0"

// Agent handles requests. All fields are required.
type Agent struct {
	// PowerOff and Reboot are called for guest-shutdown.
	PowerOff, Reboot func()
	// Interfaces lists the network interfaces.
	Interfaces func() ([]Interface, error)
}

// Interface is a network interface, in the format of the protocol.
type Interface struct {
	// Name of the interface.
	Name string `json:"name"`
	// Hardware is the Ethernet address. It is optional.
	Hardware string `json:"hardware-address,omitempty"`
	// Addresses of the interface. They are optional.
	Addresses []Address `json:"ip-addresses"`
}

// Address of an Interface.
type Address struct {
	// Type is ipv4 or ipv6.
	Type string `json:"ip-address-type"`
	// IP is the address.
	IP string `json:"ip-address"`
	// Prefix is the length of the prefix in bits.
	Prefix int `json:"prefix"`
}

// longestRequest is the maximum length of a line.
const longestRequest = 64 << 10

// sentinel begins a response to guest-sync-delimited, and may precede requests.
const sentinel = 0xff

type request struct {
	Execute   string          `json:"execute"`
	Arguments json.RawMessage `json:"arguments"`
	ID        json.RawMessage `json:"id"`
}

type response struct {
	Return any             `json:"return,omitempty"`
	Error  *failure        `json:"error,omitempty"`
	ID     json.RawMessage `json:"id,omitempty"`
}

type failure struct {
	Class       string `json:"class"`
	Description string `json:"desc"`
}

func (f *failure) Error() string { return f.Description }

// Serve handles requests until the end of the stream, for which it returns nil.
func (a *Agent) Serve(stream io.ReadWriter) error {
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, longestRequest)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		line = line[bytes.LastIndexByte(line, sentinel)+1:]
		if len(line) == 0 {
			continue
		}
		if response := a.respond(line); response != nil {
			if _, err := stream.Write(response); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

// respond returns the line to send, or nil.
func (a *Agent) respond(line []byte) []byte {
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return encode(response{Error: &failure{"GenericError", "the request is not a JSON object"}})
	}
	handle, ok := commands[r.Execute]
	if !ok {
		return encode(response{ID: r.ID, Error: &failure{"CommandNotFound", "The command " + r.Execute + " has not been found"}})
	}
	result, err := handle(a, r.Arguments)
	switch {
	case errors.Is(err, errSilent):
		return nil
	case err != nil:
		return encode(response{ID: r.ID, Error: &failure{"GenericError", err.Error()}})
	}
	response := encode(response{ID: r.ID, Return: result})
	if r.Execute == "guest-sync-delimited" {
		response = append([]byte{sentinel}, response...)
	}
	return response
}

func encode(r response) []byte {
	text, err := json.Marshal(r)
	if err != nil { // all results can be encoded
		panic(err)
	}
	return append(text, '\n')
}

// errSilent is the result of commands that have no response on success.
var errSilent = errors.New("no response")

var commands map[string]func(a *Agent, arguments json.RawMessage) (any, error)

func init() { // not a literal, since guest-info lists them
	commands = map[string]func(*Agent, json.RawMessage) (any, error){
		"guest-ping":                   func(*Agent, json.RawMessage) (any, error) { return struct{}{}, nil },
		"guest-sync":                   synchronize,
		"guest-sync-delimited":         synchronize,
		"guest-info":                   info,
		"guest-shutdown":               (*Agent).shutdown,
		"guest-network-get-interfaces": (*Agent).interfaces,
	}
}

func synchronize(_ *Agent, arguments json.RawMessage) (any, error) {
	var given struct {
		ID *int64 `json:"id"`
	}
	if err := json.Unmarshal(arguments, &given); err != nil || given.ID == nil {
		return nil, errors.New("parameter 'id' is missing")
	}
	return *given.ID, nil
}

func info(*Agent, json.RawMessage) (any, error) {
	type command struct {
		Name     string `json:"name"`
		Enabled  bool   `json:"enabled"`
		Responds bool   `json:"success-response"`
	}
	supported := []command{}
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		supported = append(supported, command{name, true, name != "guest-shutdown"})
	}
	return map[string]any{"version": Version, "supported_commands": supported}, nil
}

func (a *Agent) shutdown(arguments json.RawMessage) (any, error) {
	given := struct {
		Mode string `json:"mode"`
	}{"powerdown"}
	if len(arguments) > 0 {
		if err := json.Unmarshal(arguments, &given); err != nil {
			return nil, errors.New("invalid parameter 'mode'")
		}
	}
	switch given.Mode {
	case "powerdown", "halt":
		a.PowerOff()
	case "reboot":
		a.Reboot()
	default:
		return nil, errors.New("mode is not powerdown, halt or reboot")
	}
	return nil, errSilent
}

func (a *Agent) interfaces(json.RawMessage) (any, error) { return a.Interfaces() }

// SystemInterfaces returns the network interfaces of this machine.
func SystemInterfaces() ([]Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	listed := []Interface{}
	for _, card := range all {
		addresses, err := card.Addrs()
		if err != nil {
			return nil, err
		}
		entry := Interface{Name: card.Name, Hardware: card.HardwareAddr.String(), Addresses: []Address{}}
		for _, address := range addresses {
			prefix, ok := address.(*net.IPNet)
			if !ok {
				continue
			}
			bits, _ := prefix.Mask.Size()
			kind := "ipv6"
			if prefix.IP.To4() != nil {
				kind = "ipv4"
			}
			entry.Addresses = append(entry.Addresses, Address{kind, prefix.IP.String(), bits})
		}
		listed = append(listed, entry)
	}
	return listed, nil
}

package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// duplex is a stream that consists of a reader and a writer.
type duplex struct {
	io.Reader
	io.Writer
}

func serve(t *testing.T, a *Agent, requests string) string {
	t.Helper()
	var out bytes.Buffer
	if err := a.Serve(duplex{strings.NewReader(requests), &out}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestServe_Responses(t *testing.T) {
	a := &Agent{Interfaces: func() ([]Interface, error) {
		return []Interface{{Name: "eth0", Hardware: "02:00", Addresses: []Address{{"ipv4", "10.0.2.16", 32}}}}, nil
	}}
	for name, test := range map[string]struct{ request, want string }{
		"Ping":        {`{"execute":"guest-ping"}`, `{"return":{}}`},
		"ID":          {`{"execute":"guest-ping","id":"a"}`, `{"return":{},"id":"a"}`},
		"Sync":        {`{"execute":"guest-sync","arguments":{"id":7}}`, `{"return":7}`},
		"SyncZero":    {`{"execute":"guest-sync","arguments":{"id":0}}`, `{"return":0}`},
		"SyncNothing": {`{"execute":"guest-sync"}`, `{"error":{"class":"GenericError","desc":"parameter 'id' is missing"}}`},
		"Delimited":   {"half\xff" + `{"execute":"guest-sync-delimited","arguments":{"id":7}}`, "\xff" + `{"return":7}`},
		"Unknown":     {`{"execute":"guest-fly"}`, `{"error":{"class":"CommandNotFound","desc":"The command guest-fly has not been found"}}`},
		"Garbage":     {`nonsense`, `{"error":{"class":"GenericError","desc":"the request is not a JSON object"}}`},
		"Interfaces": {
			`{"execute":"guest-network-get-interfaces"}`,
			`{"return":[{"name":"eth0","hardware-address":"02:00","ip-addresses":[{"ip-address-type":"ipv4","ip-address":"10.0.2.16","prefix":32}]}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want+"\n", serve(t, a, "\n"+test.request+"\n")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestInfo_ListsCommands(t *testing.T) {
	var got struct {
		Return struct {
			Version  string
			Commands []struct {
				Name        string
				HasResponse bool `json:"success-response"`
			} `json:"supported_commands"`
		}
	}
	if err := json.Unmarshal([]byte(serve(t, &Agent{}, `{"execute":"guest-info"}`+"\n")), &got); err != nil {
		t.Fatal(err)
	}
	if got.Return.Version != Version || len(got.Return.Commands) != len(commands) {
		t.Errorf("guest-info = %+v, want version %s and %d commands", got, Version, len(commands))
	}
	for _, command := range got.Return.Commands {
		if command.HasResponse == (command.Name == "guest-shutdown") {
			t.Errorf("guest-info: got success-response %[2]t for %[1]s", command.Name, command.HasResponse)
		}
	}
}

func TestShutdown(t *testing.T) {
	for name, test := range map[string]struct{ arguments, want string }{
		"Default":   {"", "off"},
		"PowerDown": {`,"arguments":{"mode":"powerdown"}`, "off"},
		"Halt":      {`,"arguments":{"mode":"halt"}`, "off"},
		"Reboot":    {`,"arguments":{"mode":"reboot"}`, "reboot"},
		"Unknown":   {`,"arguments":{"mode":"sleep"}`, ""},
		"Wrong":     {`,"arguments":{"mode":1}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			did := ""
			a := &Agent{PowerOff: func() { did += "off" }, Reboot: func() { did += "reboot" }}
			response := serve(t, a, `{"execute":"guest-shutdown"`+test.arguments+"}\n")
			if did != test.want || (response == "") != (test.want != "") {
				t.Errorf("got action %q and response %q, want action %q and a response only to an invalid mode", did, response, test.want)
			}
		})
	}
}

func TestInterfaces_IncludeLoopback(t *testing.T) {
	all, err := SystemInterfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, card := range all {
		for _, address := range card.Addresses {
			if card.Name == "lo" && address == (Address{"ipv4", "127.0.0.1", 8}) {
				return
			}
		}
	}
	t.Errorf("interfaces = %+v, want lo with 127.0.0.1/8", all)
}

func TestServe_ReturnsOnBrokenStream(t *testing.T) {
	broken := errors.New("broken")
	a := &Agent{}
	if err := a.Serve(duplex{io.MultiReader(strings.NewReader("{}\n"), errorReader{broken}), io.Discard}); !errors.Is(err, broken) {
		t.Errorf("Serve = %v, want the stream's error", err)
	}
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

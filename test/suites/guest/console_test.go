package guest

import (
	"bufio"
	"encoding/json"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestGuest_Console checks that a guest without user data responds on its console, and restarts and shuts down on
// request.
func TestGuest_Console(t *testing.T) {
	tier.All(t)
	t.Parallel()
	guest := boot(t, direct(t))
	guest.until("network: 10.0.2.16 via 10.0.2.2")
	guest.until("there is no volume cidata")

	guest.send("pinx\x7fg\r")
	guest.until("pong\r\n")
	guest.send("status\n")
	guest.until("UUID " + uuid)
	guest.send("count on\n")
	guest.until("count 1\r\ncount 2\r\ncount 3\r\n")
	guest.send("count off\n")

	// Messages of the kernel. The guest's own messages before them wait only briefly for a slow console.
	for restart, texts := range map[string]string{"reboot": "reboot: Restarting system", "panic": "Kernel panic"} {
		guest.send(restart + "\n")
		guest.until(texts)
		guest.until("network: ")
		guest.until("there is no volume cidata")
	}
	guest.send("poweroff\n")
	guest.until("reboot: Power down")
	guest.awaitEnd()
}

// TestGuest_PowerButton checks that the guest shuts down immediately when the button is pressed.
func TestGuest_PowerButton(t *testing.T) {
	tier.All(t)
	t.Parallel()
	guest := boot(t, direct(t))
	guest.until("there is no volume cidata")
	pressed := time.Now()
	must(t, guest.Powerdown(bounded(t)))
	guest.until("reboot: Power down")
	guest.awaitEnd()
	t.Logf("powered off after %s", time.Since(pressed))
}

// TestGuest_Agent checks that the guest's agent reports the guest's addresses and can shut it down.
func TestGuest_Agent(t *testing.T) {
	tier.All(t)
	t.Parallel()
	guest := boot(t, direct(t))
	guest.until("there is no volume cidata")
	responses := json.NewDecoder(bufio.NewReader(guest.Agent()))
	must(t, guest.Agent().SetDeadline(time.Now().Add(waitTimeout)))

	var synchronized struct{ Return int }
	ask(t, guest, `{"execute":"guest-sync","arguments":{"id":4711}}`)
	must(t, responses.Decode(&synchronized))
	if synchronized.Return != 4711 {
		t.Errorf("guest-sync returned %d, want 4711", synchronized.Return)
	}
	var interfaces struct {
		Return []struct {
			Addresses []struct {
				IP string `json:"ip-address"`
			} `json:"ip-addresses"`
		}
	}
	ask(t, guest, `{"execute":"guest-network-get-interfaces"}`)
	must(t, responses.Decode(&interfaces))
	found := false
	for _, card := range interfaces.Return {
		for _, a := range card.Addresses {
			found = found || a.IP == address.String()
		}
	}
	if !found {
		t.Errorf("interfaces = %+v, want one with %s", interfaces.Return, address)
	}
	ask(t, guest, `{"execute":"guest-shutdown"}`)
	guest.awaitEnd()
}

func ask(t *testing.T, guest *running, request string) {
	t.Helper()
	_, err := guest.Agent().Write([]byte(request + "\n"))
	must(t, err)
}

package ui

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// writeTimeout is how long a tab may take to read a message, before its connection is closed.
	writeTimeout = 10 * time.Second
	// pingInterval is the time between pings on idle connections. Proxies close idle connections, commonly after a minute.
	pingInterval = 20 * time.Second
	// maxTyped limits a message from the page in bytes.
	maxTyped = 64 << 10
)

// upgrader accepts WebSockets. The origin was checked before. WebSockets are used instead of server-sent events because
// browsers limit the latter to six connections, in all tabs together.
var upgrader = websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }, WriteBufferSize: 64 << 10}

// stream sends the rows, and then those that change, to a tab.
func (s *view) stream(w http.ResponseWriter, r *http.Request) {
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // the upgrader has responded
	}
	defer conn.Close()
	defer s.history.open()()
	ctx, cancel := context.WithCancel(s.stopping)
	defer cancel()
	go func() { // notices that the tab has gone
		defer cancel()
		conn.SetReadLimit(1 << 10)
		for {
			if _, _, err := conn.NextReader(); err != nil {
				return
			}
		}
	}()
	defer s.reportEnd(conn)
	ping := time.NewTicker(pingInterval)
	defer ping.Stop()
	var number int64
	for {
		delta, last, changed := s.model.hub.since(number)
		number = last
		delta.Now = time.Now().UnixMilli()
		_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails only on closed connections, as the writes
		if conn.WriteJSON(delta) != nil {
			return
		}
		select { // changes within this time are sent together
		case <-time.After(pace):
		case <-ctx.Done():
			return
		}
		select {
		case <-changed:
		case <-ping.C: // an empty message shows the page that the connection works
		case <-ctx.Done():
			return
		}
	}
}

// Codes with which the page learns why a console or the rows were closed.
const (
	closeRefused = 4000
	// closeLogIn means that the user must log in.
	closeLogIn = 4001
	maxReason  = 120 // bytes, a limit of WebSockets
)

// reportEnd closes a connection with the reason for which the session ended, if it did.
func (s *view) reportEnd(tab *websocket.Conn) {
	if ended := (*endedError)(nil); errors.As(context.Cause(s.stopping), &ended) {
		closeWith(tab, closeLogIn, ended.Error())
	}
}

// console connects a tab with the console of a VirtualMachine.
func (s *view) console(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	key := types.NamespacedName{Namespace: query.Get("namespace"), Name: query.Get("name")}
	tab, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // the upgrader has responded
	}
	defer tab.Close()
	tab.SetReadLimit(maxTyped)
	ctx, cancel := context.WithCancel(s.stopping)
	defer cancel()
	if s.options.Console == nil {
		refuse(tab, errors.New("this cluster has no consoles"))
		return
	}
	guest, err := s.options.Console(ctx, key)
	if err != nil {
		refuse(tab, err)
		return
	}
	defer guest.Close()
	stop := context.AfterFunc(ctx, func() {
		s.reportEnd(tab)
		guest.Close()
		tab.Close()
	})
	defer stop()
	go keepOpen(ctx, tab)
	go func() {
		defer cancel()
		_ = relay(tab, guest) // the tab has gone
	}()
	if err := relay(guest, tab); ctx.Err() == nil {
		var closed *websocket.CloseError
		if errors.As(err, &closed) && closed.Code != websocket.CloseAbnormalClosure {
			closeWith(tab, closed.Code, closed.Text)
			return
		}
		refuse(tab, errors.New("the connection to the console was lost"))
	}
}

// keepOpen sends pings to a console until ctx is done, because a guest may print nothing for hours. Browsers respond to pings.
func keepOpen(ctx context.Context, tab *websocket.Conn) {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = tab.WriteControl(websocket.PingMessage, nil, time.Now().Add(writeTimeout)) // relay notices that the tab has gone
		case <-ctx.Done():
			return
		}
	}
}

// relay copies binary messages until one side is closed. It returns the reason.
func relay(from, to *websocket.Conn) error {
	for {
		kind, piece, err := from.ReadMessage()
		if err != nil {
			return err
		}
		if kind != websocket.BinaryMessage {
			continue
		}
		_ = to.SetWriteDeadline(time.Now().Add(writeTimeout))
		if err := to.WriteMessage(websocket.BinaryMessage, piece); err != nil {
			return err
		}
	}
}

func refuse(tab *websocket.Conn, err error) { closeWith(tab, closeRefused, err.Error()) }

func closeWith(tab *websocket.Conn, code int, text string) {
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") // removes an incomplete character at the end
	}
	_ = tab.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, text), time.Now().Add(writeTimeout)) // the tab has gone
}

// Command pause holds the namespaces of a Pod, as the program of that name of Kubernetes does.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, os.Interrupt)
	<-end
}

// Package wire converts between the calls of a driver and the messages of the protocol
// millwright.driver, for both of its ends.
package wire

import (
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// Limits of the protocol.
const (
	// MaxMessage is how long a message may be, in bytes. The longest are lists: that of 50,000
	// VMs fits.
	MaxMessage = 16 << 20
	// MaxHeaders bounds the headers of a call, in bytes.
	MaxHeaders = 16 << 10
	// DefaultOperations and MaxOperations are for Registration.max_operations.
	DefaultOperations, MaxOperations = 50, 1000
	// MaxText is how long an error's message may be, in bytes.
	MaxText = 4096
	// MaxVersion is how long the version of a driver may be, in bytes.
	MaxVersion = 63
	// MinInstance and MaxInstance bound Registration.instance, in bytes.
	MinInstance, MaxInstance = 16, 64
)

// KeepaliveTime is how long a connection may be silent before it is probed, and then how long the
// other end has to answer.
const KeepaliveTime = 10 * time.Second

// APIVersion is the only one that is served.
var APIVersion = v1alpha1.SchemeGroupVersion.String()

// Shortened returns the beginning of a text, as valid UTF-8.
func Shortened(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= MaxText {
		return text
	}
	end := MaxText - len("…")
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// Fail puts an error into a result. Nil is success.
func Fail(result *driverpb.OperationResult, err error) {
	if err == nil {
		return
	}
	found, _ := status.FromError(err)
	result.Code, result.Message = uint32(status.Code(err)), Shortened(found.Message())
}

// Failure returns the error of a result: nil for success.
func Failure(result *driverpb.OperationResult) error {
	code := codes.Code(result.GetCode())
	if int64(code) >= int64(len(codes.All())) {
		code = codes.Unknown
	}
	return status.Error(code, Shortened(result.GetMessage()))
}

// ToAddresses converts the addresses of a VM.
func ToAddresses(addresses []corev1.NodeAddress) []*driverpb.Address {
	var all []*driverpb.Address
	for _, one := range addresses {
		all = append(all, &driverpb.Address{Type: string(one.Type), Address: one.Address})
	}
	return all
}

// FromAddresses is the inverse of ToAddresses.
func FromAddresses(addresses []*driverpb.Address) []corev1.NodeAddress {
	var all []corev1.NodeAddress
	for _, one := range addresses {
		all = append(all, corev1.NodeAddress{Type: corev1.NodeAddressType(one.GetType()), Address: one.GetAddress()})
	}
	return all
}

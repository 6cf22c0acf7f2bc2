//go:build dependencies

// Package dependencies keeps requirements of modules in go.mod that only the programs of providers need. It is never
// compiled.
package dependencies

// Until 2023, google.golang.org/genproto contained packages that are modules of their own now. If a dependency of a
// provider requires a version from that time, packages such as googleapis/rpc/status exist twice, and the provider does
// not build. A newer version of the module contains them no longer.
import _ "google.golang.org/genproto/protobuf/field_mask"

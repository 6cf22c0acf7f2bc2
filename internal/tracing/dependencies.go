//go:build dependencies

package tracing

// The exporter needs a package of google.golang.org/genproto/googleapis/api, which an old version of
// google.golang.org/genproto also contains, and gVisor requires such a version. This import makes the module graph select
// a version without that package.
import _ "google.golang.org/genproto/protobuf/field_mask"

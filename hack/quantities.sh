#!/usr/bin/env bash
# Has CRDs refuse quantities that clients of Go cannot read, or not in a lifetime: controller-gen's pattern lets pass
# fractions and any number of digits in an exponent.
#
# usage: hack/quantities.sh CRD...
set -euo pipefail

was='^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$'
is='^(\+|-)?(([0-9]{1,30}(\.[0-9]{0,30})?)|(\.[0-9]{1,30}))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]{1,2}))?$'
for file; do
	text=$(<"$file")
	printf '%s\n' "${text//"$was"/"$is"}" >"$file"
done

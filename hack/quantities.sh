#!/usr/bin/env bash
# Changes CRDs to reject quantities that Go clients cannot parse, or not within a reasonable time: controller-gen's
# pattern accepts fractions and any number of digits in an exponent.
#
# usage: hack/quantities.sh CRD...
set -euo pipefail

was='^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$'
is='^(\+|-)?(([0-9]{1,30}(\.[0-9]{0,30})?)|(\.[0-9]{1,30}))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]{1,2}))?$'
for file; do
	text=$(<"$file")
	printf '%s\n' "${text//"$was"/"$is"}" >"$file"
done

package authority

// These functions are exported for tests that also use package disks.
var (
	LeaseAfter = leaseAfter
	PassLease  = passLease
	NextToken  = nextToken
)

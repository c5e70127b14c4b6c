package network

// gatewayRows are the rows of the IPv4 gateway.
var gatewayRows []row

// The root of the module; each of the other .mod files is one pair of loaders (scripts/peer.sh cniloaders).
module sandglass.test/loaders

package clusterdir

// Values of Settings.Profile, besides the names of profiles.
const (
	// ProfileAuto chooses the profile by the number of nodes.
	ProfileAuto = "auto"
	// ProfileNone uses no profile.
	ProfileNone = "none"
)

// AppliedProfile is a profile that was applied to settings, with what it has set. It is empty if none was. It is
// saved with the settings, so that the next `k1m up` can tell the profile's values from those of the user.
type AppliedProfile struct {
	Name string `json:"name,omitempty"`
	// Nodes is the number of nodes from which on ProfileAuto chooses the profile.
	Nodes   int             `json:"nodes,omitempty"`
	Changes []ProfileChange `json:"changes,omitempty"`
}

// ProfileChange is a flag of `k1m up` that a profile has set, and why. For a repeatable flag, Value is the entry
// that was added.
type ProfileChange struct {
	Flag   string `json:"flag"`
	Value  string `json:"value"`
	Reason string `json:"reason"`
}

// String returns the change as it would be written on a command line.
func (c ProfileChange) String() string {
	if c.Value == "true" {
		return "--" + c.Flag
	}
	return "--" + c.Flag + " " + c.Value
}

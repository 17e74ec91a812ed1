//! `sandglass doctor`: what can be observed on this node, and what is wrong with its CNI set-up.

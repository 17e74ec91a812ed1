//! CRI-O's settings: `crio.conf(5)` and its drop-in directory, of which the last value of each key counts.

use toml::Value;

use super::super::os::under;
use super::{CniOptions, CniSettings, MAX_SETTINGS_FILES, list};

impl CniSettings {
    pub(super) fn read_crio(&mut self, options: &CniOptions) {
        let mut files = vec![under(&options.root, CONF)];
        files.extend(list(&under(&options.root, CONF_DIR)));
        for path in files.into_iter().take(MAX_SETTINGS_FILES) {
            if !path.is_file() {
                continue;
            }
            let Some(table) = self.table(&path) else {
                continue;
            };
            let Some(network) = table.get("crio").and_then(|crio| crio.get("network")) else {
                continue;
            };
            self.sources.push(path.clone());
            if let Some(directory) = self.text(&path, network, "network_dir") {
                self.conf_dir = under(&options.root, &directory);
            }
            if let Some(directory) = self.text(&path, network, "plugin_dir") {
                self.bin_dirs = vec![under(&options.root, &directory)];
            }
            if let Some(directories) = self.texts(&path, network, "plugin_dirs") {
                self.bin_dirs = directories.iter().map(|dir| under(&options.root, dir)).collect();
            }
            if let Some(name) = network.get("cni_default_network").and_then(Value::as_str) {
                name.clone_into(&mut self.default_network);
            }
        }
    }
}

pub(super) const CONF: &str = "/etc/crio/crio.conf";
pub(super) const CONF_DIR: &str = "/etc/crio/crio.conf.d";

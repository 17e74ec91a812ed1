//! Certificates for tests of TLS, made by the `openssl` command when the test runs: an authority with a certificate for 127.0.0.1
//! and one of a client, and another authority with a client.
//!
//! Used by the tests of the page's listener and of `watch`. Does not: outlive its folder.

use std::path::Path;
use std::process::Command;

/// Makes `ca`, `other`, `server`, `client` and `stranger` (.pem and .key) in `folder`; without the command prints `SKIPPED` and
/// returns false.
pub fn make(test: &str, folder: &Path) -> bool {
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("SKIPPED {test}: no openssl command");
        return false;
    }
    let openssl = |arguments: &str| {
        let made = Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(folder)
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "{arguments}: {}",
            String::from_utf8_lossy(&made.stderr)
        );
    };
    const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    for authority in ["ca", "other"] {
        openssl(&format!(
            "req -x509 {KEY} -days 2 -subj /CN={authority} -keyout {authority}.key -out {authority}.pem"
        ));
    }
    const OF_SERVER: &str = "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";
    const OF_CLIENT: &str = "extendedKeyUsage=clientAuth\nbasicConstraints=CA:FALSE\n";
    for (name, authority, extensions) in [
        ("server", "ca", OF_SERVER),
        ("client", "ca", OF_CLIENT),
        ("stranger", "other", OF_CLIENT),
    ] {
        std::fs::write(folder.join(format!("{name}.ext")), extensions).unwrap();
        openssl(&format!(
            "req {KEY} -subj /CN={name} -keyout {name}.key -out {name}.csr"
        ));
        openssl(&format!(
            "x509 -req -days 2 -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -in {name}.csr -out {name}.pem -extfile {name}.ext"
        ));
    }
    true
}

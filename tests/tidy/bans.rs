//! Every queue has a limit. No method of a port has a default body, which a wrapper could forget to forward. No folder
//! has the name of a build folder.

use syn::visit::{self, Visit};

use crate::Fault;
use crate::tree::Source;

/// Constructors of channels without a limit.
const UNBOUNDED: [&str; 2] = ["unbounded_channel", "unbounded"];
/// Modules and crates with such constructors. Other types may have a function of the same name.
const CHANNELS: [&str; 5] = ["async_channel", "channel", "crossbeam_channel", "flume", "mpsc"];
/// The ports: the files of these names and the files below them. The last one is the port of the composition.
const PORTS: [&str; 3] = ["pipeline/src/ports", "pipeline/coupons/src/ports", "pipeline/src/composition"];
/// Paths that may have channels without a limit: the queues of a measurement must not hold up the measured load.
const UNBOUNDED_KNOWN: [&str; 1] = ["tests/benchmarks/"];

pub fn faults(source: &Source) -> Vec<Fault> {
    let mut found = Banned { source, is_port: is_port(source.path()), faults: Vec::new() };
    found.visit_file(&source.syntax);
    if source.path().split('/').any(|part| part == "target") {
        found.faults.push(Fault {
            path: source.path().to_owned(),
            line: 1,
            what: "a folder of sources is called `target`, which many programs leave out".to_owned(),
            remedy: "Name it by what it holds.",
        });
    }
    found.faults
}

fn is_port(path: &str) -> bool {
    let is_below = |rest: &str| rest == ".rs" || rest.starts_with('/');
    PORTS.iter().any(|port| path.strip_prefix(port).is_some_and(is_below))
}

struct Banned<'s> {
    source: &'s Source,
    is_port: bool,
    faults: Vec<Fault>,
}

impl Banned<'_> {
    fn report(&mut self, span: proc_macro2::Span, what: String, remedy: &'static str) {
        let path = self.source.path().to_owned();
        self.faults.push(Fault { path, line: span.start().line, what, remedy });
    }
}

impl<'ast> Visit<'ast> for Banned<'_> {
    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(path) = &*call.func
            && let Some(last) = path.path.segments.last()
            && !UNBOUNDED_KNOWN.iter().any(|known| self.source.path().starts_with(known))
        {
            let segments: Vec<String> = path.path.segments.iter().map(|s| s.ident.to_string()).collect();
            let is_of_channels =
                segments.len() == 1 || CHANNELS.contains(&segments[segments.len() - 2].as_str());
            // The constructor in `std` takes no limit, those of other crates do.
            let is_std = last.ident == "channel" && call.args.is_empty();
            let is_unbounded = UNBOUNDED.iter().any(|name| last.ident == name);
            if is_of_channels && (is_std || is_unbounded) {
                let what = format!("`{}` makes a channel without a limit", segments.join("::"));
                self.report(
                    last.ident.span(),
                    what,
                    "Make one with room for as many as the reader can be behind.",
                );
            }
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if self.is_port && function.default.is_some() {
            let what = format!("fn {} of a port has a default body", function.sig.ident);
            self.report(function.sig.ident.span(), what, "Leave the body to each implementation.");
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn found_faults(path: &str, text: &str) -> Vec<(usize, String)> {
        faults(&sample(path, text)).into_iter().map(|fault| (fault.line, fault.what)).collect()
    }

    #[test]
    fn a_channel_without_a_limit_is_told() {
        let text = "fn f() {\n  let (a, b) = mpsc::unbounded_channel();\n  let c = std::sync::mpsc::channel::<u8>();\n\
                    let bounded = mpsc::channel(8);\n  let pace = Pace::unbounded();\n\
                    let d = flume::unbounded();\n let e = async_channel::unbounded::<u8>();\n}";
        let expected = [
            (2, "`mpsc::unbounded_channel` makes a channel without a limit"),
            (3, "`std::sync::mpsc::channel` makes a channel without a limit"),
            (6, "`flume::unbounded` makes a channel without a limit"),
            (7, "`async_channel::unbounded` makes a channel without a limit"),
        ];
        assert_eq!(
            found_faults("pipeline/src/a.rs", text),
            expected.map(|(line, what)| (line, what.to_owned()))
        );
        assert_eq!(found_faults("tests/benchmarks/a.rs", text), []);
    }

    #[test]
    fn a_folder_of_the_name_of_a_build_folder_is_told() {
        let what = "a folder of sources is called `target`, which many programs leave out";
        assert_eq!(found_faults("connectors/src/target/a.rs", ""), [(1, what.to_owned())]);
        assert_eq!(found_faults("connectors/src/target.rs", ""), []);
    }

    #[test]
    fn a_default_body_is_told_in_a_port_only() {
        let text = "trait Store {\n  fn load(&self);\n  fn is_atomic(&self) -> bool { true }\n}";
        let expected = [(3, "fn is_atomic of a port has a default body".to_owned())];
        for port in ["src/ports/store.rs", "src/ports.rs", "coupons/src/ports.rs", "src/composition.rs"] {
            assert_eq!(found_faults(&format!("pipeline/{port}"), text), expected);
        }
        assert_eq!(found_faults("pipeline/src/supervise.rs", text), []);
    }
}

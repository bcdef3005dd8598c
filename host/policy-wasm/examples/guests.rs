//! Writes the test guests of `tests/guests/` as components to `tests/guests/dist/`.

#[path = "../tests/support/guests.rs"]
mod guests;

fn main() -> std::io::Result<()> {
    let target = guests::directory().join("dist");
    std::fs::create_dir_all(&target)?;
    for name in guests::names() {
        let component = guests::component(&name);
        println!("{name}.wasm: {} bytes", component.len());
        std::fs::write(target.join(format!("{name}.wasm")), component)?;
    }
    Ok(())
}

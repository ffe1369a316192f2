package thermocline.interop.cluster;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;

/** A process of {@code thermocline offloader} that does nothing unless it is ordered to. */
public final class Offloader extends Role {
    private static final byte[] NOTHING = {};

    Offloader(Path dir, String metadata, String cold, String handleGrace) throws Exception {
        super(dir, List.of("offloader", "--metadata", metadata, "--cold", cold, "--listen", "127.0.0.1:0", "--admin", "off",
            "--set", "offloader.enabled=false", "--set", "offloader.scan_interval=1s", "--set", "offloader.handle_grace=" + handleGrace));
    }

    /** Settles a closed ledger and releases it: returns once its members are cold ids. */
    public void release(long ledger) throws Exception {
        if (!releaseAsFarAsMayBe(ledger)) {
            throw new AssertionError("ledger " + ledger + " is released in part only");
        }
    }

    /** Settles a closed ledger and releases it as far as may be now; false: only the first of two steps is done. */
    public boolean releaseAsFarAsMayBe(long ledger) throws Exception {
        byte[] told = run(NOTHING, "offload", "now", Long.toString(ledger), "--release", "--output", "json").good();
        return new String(told, StandardCharsets.UTF_8).contains("\"tier\":\"released\"");
    }
}

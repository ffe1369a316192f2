package thermocline.interop.cluster;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** Thermocline's bookie, with its metadata where BookKeeper keeps its own. */
final class ThermoclineBookie extends Bookie {
    private static final Duration READY = Duration.ofSeconds(60);

    private final Zoo zoo;
    private final List<String> settings;
    private int launches;

    ThermoclineBookie(int port, Path dir, Zoo zoo, List<String> settings) {
        super(port, dir);
        this.zoo = zoo;
        this.settings = settings;
    }

    @Override
    List<String> command() {
        launches++;
        List<String> command = new ArrayList<>(List.of(
            System.getProperty("thermocline"), "bookie",
            "--id", id().toString(),
            "--dir", dir().resolve("data").toString(),
            "--listen", id().toString(),
            "--admin", "off",
            "--metadata", Cluster.uri(zoo),
            // The default keeps more disk ready than short tests fill.
            "--set", "bookie.segment_bytes=64MiB",
            "--set", "bookie.registration_ttl=4s"));
        settings.forEach(setting -> command.addAll(List.of("--set", setting)));
        return command;
    }

    @Override
    void awaitReady() throws Exception {
        await("says that it serves", READY, this::saidReady);
        await("is registered", READY, () -> zoo.exists(Cluster.ROOT + "/available/" + id()));
    }

    @Override
    void gone() throws Exception {
        Waiting.until("the session of " + id() + " ends", READY, () -> !zoo.exists(Cluster.ROOT + "/available/" + id()));
    }

    private boolean saidReady() throws IOException {
        return Files.readAllLines(log()).stream().filter(line -> line.startsWith("ready ")).count() >= launches;
    }
}

package thermocline.interop.cluster;

import java.io.IOException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.discover.RegistrationManager;
import org.apache.bookkeeper.meta.MetadataBookieDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.stats.NullStatsLogger;

/**
 * Thermocline's bookie. It has metadata of its own, in which no ledger is, so it must collect nothing; and it is registered
 * in ZooKeeper by BookKeeper's registration manager, in a session that lives as long as the process.
 */
final class ThermoclineBookie extends Bookie {
    private static final Duration READY = Duration.ofSeconds(60);

    private final Zoo zoo;
    private int launches;
    private MetadataBookieDriver driver;

    ThermoclineBookie(int port, Path dir, Zoo zoo) {
        super(port, dir);
        this.zoo = zoo;
    }

    @Override
    List<String> command() {
        launches++;
        return List.of(
            System.getProperty("thermocline"), "bookie",
            "--id", id().toString(),
            "--dir", dir().resolve("data").toString(),
            "--listen", id().toString(),
            "--admin", "off",
            "--metadata", "embedded:" + dir().resolve("metadata"),
            "--set", "bookie.collect_interval=24h",
            "--set", "bookie.segment_bytes=64MiB",
            "--set", "bookie.registration_ttl=2s");
    }

    @Override
    void awaitReady() throws Exception {
        await("says that it serves", READY, this::saidReady);
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setMetadataServiceUri(Cluster.uri(zoo));
        driver = MetadataDrivers.getBookieDriver(java.net.URI.create(Cluster.uri(zoo)));
        BookieServiceInfo.Endpoint endpoint = new BookieServiceInfo.Endpoint(
            "bookie", port(), "127.0.0.1", "bookie-rpc", List.of(), List.of());
        BookieServiceInfo info = new BookieServiceInfo(java.util.Map.of(), List.of(endpoint));
        registrations(driver, configuration).registerBookie(id(), false, info);
    }

    /** Versions before 4.15 want a listener, which is told of the end of the session, and name the manager otherwise. */
    private static RegistrationManager registrations(MetadataBookieDriver driver, ServerConfiguration configuration)
            throws ReflectiveOperationException {
        Class<?> type = MetadataBookieDriver.class;
        for (Method method : type.getMethods()) {
            if (!method.getName().equals("initialize")) {
                continue;
            }
            if (method.getParameterCount() == 2) {
                method.invoke(driver, configuration, NullStatsLogger.INSTANCE);
                return (RegistrationManager) type.getMethod("createRegistrationManager").invoke(driver);
            }
            Class<?> listener = method.getParameterTypes()[1];
            Object deaf = Proxy.newProxyInstance(listener.getClassLoader(), new Class<?>[] {listener},
                (proxy, called, arguments) -> null);
            method.invoke(driver, configuration, deaf, NullStatsLogger.INSTANCE);
        }
        return (RegistrationManager) type.getMethod("getRegistrationManager").invoke(driver);
    }

    @Override
    void gone() throws Exception {
        if (driver != null) {
            driver.close();
            driver = null;
            Waiting.until("the session of " + id() + " ends", READY,
                () -> !zoo.exists(Cluster.ROOT + "/available/" + id()));
        }
    }

    private boolean saidReady() throws IOException {
        return Files.readAllLines(log()).stream().filter(line -> line.startsWith("ready ")).count() >= launches;
    }
}

package org.apache.bookkeeper.bookie;

import java.io.File;
import java.util.List;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.RegistrationManager;

/** Stands before BookKeeper's class of this name: the process that serves writes its own cookie, and it has its own directory. */
public class LegacyCookieValidation implements CookieValidation {
    /** As BookKeeper's. */
    public LegacyCookieValidation(ServerConfiguration configuration, RegistrationManager registration) {}

    /** As BookKeeper's. */
    public static LegacyCookieValidation newLegacyCookieValidation(
            ServerConfiguration configuration, RegistrationManager registration) {
        return new LegacyCookieValidation(configuration, registration);
    }

    @Override
    public void checkCookies(List<File> directories) {}
}
